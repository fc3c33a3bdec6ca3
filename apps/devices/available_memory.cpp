#include "apps/devices/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "apps/devices/cgroup_memory.h"
#include "core/cuda/runtime.h"
#include "core/host_name.h"
#include "parallel/comm/bootstrap.h"

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

/// What `resource` leaves of what this process has `pages` of.
int64_t left_of(__rlimit_resource_t resource, int64_t pages) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - pages * ::sysconf(_SC_PAGESIZE), 0);
}

/// What ulimit -v and ulimit -d leave this process.
int64_t left_by_limits() {
  int64_t size = 0, resident = 0, shared = 0, text = 0, libraries = 0, data = 0;
  if (!(std::ifstream("/proc/self/statm") >> size >> resident >> shared >> text >> libraries >> data))
    return std::numeric_limits<int64_t>::max();
  return std::min(left_of(RLIMIT_AS, size), left_of(RLIMIT_DATA, data));
}

}  // namespace

int64_t share_of_gpu(int64_t free_bytes, int64_t ranks) {
  return std::max<int64_t>(free_bytes / ranks - kGpuLibraryBytes, 0);
}

int64_t ranks_that_share(const std::string& name, Communicator& control) {
  if (control.size() == 1) return 1;
  return std::ranges::count(CommunicatorBootstrap(control).all_gather(name), name);
}

int64_t memory_for_rank(Device device, Communicator& control) {
  // Looks before the others can have gone on to take any.
  if (device.is_gpu()) {
    const auto free = static_cast<int64_t>(cuda::memory_info(device.index).free_bytes);
    return share_of_gpu(free, ranks_that_share(cuda::device_uuid(device.index), control));
  }
  const int64_t machine = machine_bytes(), free = std::min(machine, cgroup_memory_left().value_or(machine));
  return std::min(free / ranks_that_share(host_name(), control), left_by_limits());
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
