#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "core/stream.h"
#include "parallel/checkpoint/held_runs.h"

namespace ottava::checkpoint {

/// A host copy of what a rank owns, from which a thread writes while training goes on. Its memory is kept
/// from one snapshot to the next and is part of the memory plan (owned_bytes() + kGapBytes).
class Snapshot {
 public:
  enum class Memory : uint8_t {
    pageable,  ///< take() returns when everything has been copied
    pinned,    ///< from a GPU copies run beside training, on a stream of their own
  };
  /// Room for gaps. While it lasts, a copy's address equals its offset in the file modulo File::kBlock.
  static constexpr int64_t kGapBytes = int64_t{4} << 20;

  explicit Snapshot(Memory memory) : kind_(memory) {}
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Allocates `bytes` of memory, for the runs and kGapBytes; without this call take() does it. Throws
  /// MemoryError.
  void reserve(Device device, int64_t bytes);
  /// Returns the runs with copies in place of their memory, without those that the rank does not own. Copies
  /// of the snapshot before must no longer be in use. Copies from host memory come with checksums. Copies
  /// from a GPU are enqueued, unit by unit, behind the work that parameters.stream has so far, each with the
  /// event of its arrival.
  std::vector<HeldRun> take(const Layout& layout, std::vector<HeldRun> runs,
                            const TrainedParameters& parameters);
  /// The end of copies that run beside training; until then nothing may write to the shards. Null if they
  /// have ended.
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
