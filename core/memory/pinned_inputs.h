#pragma once

#include "core/buffer.h"
#include "core/tensor.h"

namespace ottava {

/// Pinned host memory that inputs pass through on their way to a GPU: from there the copy engine takes them
/// at full speed while the host goes on, which pageable memory does not allow.
class PinnedInputs {
 public:
  PinnedInputs() = default;
  PinnedInputs(Device device, int64_t bytes);

  /// Everything held is free again. The copies made from it must be done.
  void begin() { used_ = 0; }
  /// A pinned copy of what the host has for `like`, until the next begin(). Throws MemoryError when more is
  /// asked for than the constructor was told.
  Tensor hold(const void* host, const Tensor& like);

 private:
  Buffer memory_;
  int64_t used_ = 0;
};

}  // namespace ottava
