#pragma once

#include "core/buffer.h"
#include "core/tensor.h"

namespace ottava {

/// Pinned host memory that inputs pass through on their way to a GPU. From there, unlike from pageable
/// memory, the copy engine takes them at full speed while the host goes on.
class PinnedInputs {
 public:
  PinnedInputs() = default;
  PinnedInputs(Device device, int64_t bytes);

  /// Frees everything held. Copies from it must have ended.
  void begin() { used_ = 0; }
  /// A pinned copy of the elements at `host`, with dtype and shape of `like`; valid until the next begin().
  /// Throws MemoryError if more is asked for than the constructor was told.
  Tensor hold(const void* host, const Tensor& like);

 private:
  Buffer memory_;
  int64_t used_ = 0;
};

}  // namespace ottava
