#pragma once

#include <cstdint>

#include "core/device.h"

namespace ottava {

/// Bytes that this process holds in Buffers (core/buffer.h) on a device, without pinned host memory: `now`,
/// and `most`, the highest since the process began or forget_most_held() was called.
struct HeldMemory {
  int64_t now = 0, most = 0;
};
HeldMemory held_memory(Device device);
void forget_most_held(Device device);

}  // namespace ottava
