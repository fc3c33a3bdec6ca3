#pragma once

#include <string_view>

#include "core/device.h"
#include "core/memory/plan.h"

namespace ottava {

/// Memory in use, also as a percentage of what the device (for a CPU, the machine) has.
struct MemoryUse {
  double gib = 0, percent = 0;
};
/// The highest values of this process on this device, since its steps began (forget_most_held()): what is
/// measured before them takes memory of its own, and gives it back. The resident memory is since the start.
struct MemoryMaxima {
  MemoryUse active;  ///< in tensors in use at the same time, as PyTorch's active_bytes
  MemoryUse
      reserved;     ///< held for tensors, as PyTorch's reserved_bytes: the plan's block and what is beside it
  MemoryUse shown;  ///< in the log line: `reserved`, as in TorchTitan; on a CPU the resident memory
};
/// `plan`: that of the arena in which training works. The part of its block that is never in use at the same
/// time does not count as active.
MemoryMaxima memory_maxima(Device device, const MemoryPlan& plan);

/// Bytes of this process that are resident: now for the line "VmRSS:", the most so far for "VmHWM:".
double resident_bytes(std::string_view line);

}  // namespace ottava
