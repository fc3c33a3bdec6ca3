#pragma once

#include <string_view>

#include "core/device.h"
#include "core/memory/plan.h"

namespace ottava {

/// Of what the device (a CPU: the machine) has.
struct MemoryUse {
  double gib = 0, percent = 0;
};
/// The most so far, of this process on this device.
struct MemoryMaxima {
  MemoryUse active;  ///< in tensors that are in use at one time, as PyTorch's active_bytes
  MemoryUse
      reserved;     ///< held for tensors, as PyTorch's reserved_bytes: the plan's block and what is beside it
  MemoryUse shown;  ///< in the log line: TorchTitan's, which is `reserved`; on a CPU the resident memory
};
/// `plan` of the arena that training works in: what its block holds beyond what is in use at one time is not
/// active.
MemoryMaxima memory_maxima(Device device, const MemoryPlan& plan);

/// Of this process: of "VmRSS:" those that are resident now, of "VmHWM:" the most so far.
double resident_bytes(std::string_view line);

}  // namespace ottava
