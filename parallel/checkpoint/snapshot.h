#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "core/stream.h"
#include "parallel/checkpoint/held_runs.h"

namespace ottava::checkpoint {

/// A host copy of what a rank owns, from which a thread writes while training goes on. The memory is kept
/// from one snapshot to the next: it is an item of the memory plan (owned_bytes() and kGapBytes).
class Snapshot {
 public:
  enum class Memory : uint8_t {
    pageable,  ///< take() returns when everything has been copied
    pinned,    ///< from a GPU copies run beside training, on a stream of their own
  };
  /// A copy lies in memory as in its file, modulo File::kBlock, as long as there is room for gaps.
  static constexpr int64_t kGapBytes = int64_t{4} << 20;

  explicit Snapshot(Memory memory) : kind_(memory) {}
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Takes so much memory, that of the runs and kGapBytes, which take() does otherwise. Throws MemoryError.
  void reserve(Device device, int64_t bytes);
  /// Replaces the memory of the runs by copies; runs that the rank does not own are dropped. The copies of
  /// the snapshot before must have been used. Copies from host memory have their checksums. From a GPU they
  /// are enqueued behind what parameters.stream was given so far, unit by unit, each with the event of its
  /// arrival.
  std::vector<HeldRun> take(const Layout& layout, std::vector<HeldRun> runs,
                            const TrainedParameters& parameters);
  /// The end of copies that run beside training: until then nothing may write to the shards. Null: they have
  /// ended.
  const Event* end_of_copies() const { return end_ ? &*end_ : nullptr; }

 private:
  void enqueue(const Layout& layout, std::vector<HeldRun>& runs, const std::vector<char*>& places,
               const TrainedParameters& parameters);

  Memory kind_;
  Buffer memory_;
  std::optional<Stream> copies_;  ///< of a GPU
  std::optional<Event> end_;
};

}  // namespace ottava::checkpoint
