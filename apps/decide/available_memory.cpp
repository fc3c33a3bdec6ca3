#include "apps/decide/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "apps/decide/cgroup_memory.h"
#include "core/cuda/runtime.h"
#include "core/host_name.h"
#include "parallel/ranks/bootstrap.h"

namespace ottava {
namespace {

int64_t machine_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

int64_t ranks_of_machine(Communicator& control) {
  if (control.size() == 1) return 1;
  const std::string name = host_name();
  return std::ranges::count(CommunicatorBootstrap(control).all_gather(name), name);
}

}  // namespace

int64_t memory_for_rank(Device device, Communicator& control) {
  const int64_t sharers = ranks_of_machine(control);
  if (device.is_gpu())
    return static_cast<int64_t>(cuda::memory_info(device.index).free_bytes) - kGpuLibraryBytes;
  const int64_t machine = machine_bytes();
  return std::min(machine, cgroup_memory_left().value_or(machine)) / sharers;
}

int64_t gpu_bytes_in_use(Device device) {
  const cuda::MemoryInfo info = cuda::memory_info(device.index);
  return info.total_bytes - info.free_bytes;
}

std::string gpu_memory_text(const GpuMemory& m) {
  auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  if (m.besides_bytes < 0) {
    return fmt::format(
        "GPU memory: plan {:.1f} MiB; what libraries, connections and graphs took besides cannot be told, "
        "since other programs gave back at least {:.1f} MiB of this GPU's memory meanwhile",
        mib(m.plan_bytes), mib(-m.besides_bytes));
  }
  return fmt::format(
      "GPU memory: plan {:.1f} MiB, and {:.1f} MiB that libraries, connections and graphs took besides ({} "
      "{:.0f} MiB kept for them)",
      mib(m.plan_bytes), mib(m.besides_bytes),
      m.besides_bytes > kGpuLibraryBytes ? "more than the" : "of the", mib(kGpuLibraryBytes));
}

}  // namespace ottava
