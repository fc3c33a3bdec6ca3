#pragma once

#include <cstdint>

#include "core/device.h"

namespace ottava {

/// Bytes that this process holds in Buffers on a device (core/buffer.h), pinned host memory left out: now,
/// and at most at one time so far.
struct HeldMemory {
  int64_t now = 0, most = 0;
};
HeldMemory held_memory(Device device);

}  // namespace ottava
