#include "apps/report/memory_use.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "core/cuda/runtime.h"
#include "core/held_memory.h"

namespace ottava {
namespace {

double total_bytes(Device device) {
  if (device.is_gpu()) return cuda::memory_info(device.index).total_bytes;
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace

double resident_bytes(std::string_view line) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == line && status >> kib) return kib * 1024;
  }
  return 0;
}

MemoryMaxima memory_maxima(Device device, const MemoryPlan& plan) {
  const double total = total_bytes(device);
  const auto use = [&](double bytes) { return MemoryUse{bytes / (1 << 30), 100 * bytes / total}; };
  int64_t alive = 0;
  for (const MemoryPlan::Phase& phase : plan.phases) alive = std::max(alive, phase.lower_bound);
  const int64_t held = held_memory(device).most, idle = plan.total_bytes() - plan.persistent_bytes - alive;
  MemoryMaxima out{.active = use(static_cast<double>(held - idle)),
                   .reserved = use(static_cast<double>(held))};
  out.shown = device.is_gpu() ? out.reserved : use(resident_bytes("VmHWM:"));
  return out;
}

}  // namespace ottava
