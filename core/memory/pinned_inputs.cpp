#include "core/memory/pinned_inputs.h"

#include <cstring>

#include "core/error.h"
#include "core/memory/plan.h"

namespace ottava {

PinnedInputs::PinnedInputs(Device device, int64_t bytes) : memory_(Buffer::pinned(device, bytes)) {}

Tensor PinnedInputs::hold(const void* host, const Tensor& like) {
  const int64_t bytes = like.bytes();
  if (used_ + bytes > static_cast<int64_t>(memory_.bytes())) {
    fail<MemoryError>("pinned inputs", "{} bytes are held and {} more asked for, of {}", used_, bytes,
                      memory_.bytes());
  }
  void* place = static_cast<char*>(memory_.data()) + used_;
  if (bytes > 0) std::memcpy(place, host, bytes);
  used_ += aligned(bytes);
  return {place, like.dtype, like.shape};
}

}  // namespace ottava
