#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/memory/arena.h"
#include "core/memory/pinned_inputs.h"
#include "core/stream.h"
#include "core/trace/step_profile.h"

namespace ottava {

/// Brings a micro-batch's inputs (i32) from the host to a GPU ahead of their turn. While the compute stream
/// is busy with the micro-batch before, they go on a stream of their own through pinned host memory to a slot
/// of device memory. There they wait until the compute stream copies them to the place that its kernels, and
/// graphs of them, always read. Slots are used in turn; events keep both streams and the host from overtaking
/// each other.
class InputRing {
 public:
  static constexpr size_t kSlots = 2;

  /// Takes persistent memory for `names.size()` arrays of up to `elements` elements in each slot; on `meta`
  /// that is all it does.
  InputRing(Stream& compute, Arena& arena, std::span<const std::string_view> names, int64_t elements);

  /// Starts the upload of one array for each name. May run one call ahead of take(); it then waits, on the
  /// host, until the upload before the last has left pinned memory.
  void upload(std::span<const std::span<const int32_t>> arrays);
  /// places[i] = array i of the oldest upload not yet taken, of which there must be one, ordered on the
  /// compute stream.
  void take(std::span<const Tensor> places);

  /// Null on `meta`.
  Stream* copies() { return copies_ ? &*copies_ : nullptr; }
  /// Profiles uploads, on copies(); null stops it.
  void set_profile(StepProfile* profile) { profile_ = profile; }

 private:
  struct Slot {
    std::vector<Tensor> device;
    PinnedInputs pinned;
    Event uploaded, taken;
  };
  Stream& compute_;
  std::optional<Stream> copies_;  ///< not on meta
  std::vector<Slot> slots_;
  size_t uploads_ = 0, takes_ = 0;
  StepProfile* profile_ = nullptr;
};

}  // namespace ottava
