#include <fstream>

#include "core/allowed_cpus.h"
#include "core/error.h"
#include "core/log.h"
#include "core/parallel_for.h"
#include "parallel/ranks/cpu_quota.h"
#include "parallel/ranks/launch.h"

namespace ottava {
namespace {

// Hyperthreads of one core list the same siblings, the lowest first ("3,67"); without the file a CPU is its
// own core.
int core_of_cpu(int cpu) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  int core = cpu;
  file >> core;
  return file ? core : cpu;
}

}  // namespace

CpuShare cpu_share(const Launch& launch) {
  return share_cpus(launch, allowed_cpus(), core_of_cpu, process_environment(), cpu_quota());
}

CpuShare apply_cpu_share(const Launch& launch) {
  CpuShare share = cpu_share(launch);
  if (share.binds) {
    if (!allow_cpus(share.cpus)) {
      log::warning("rank {} could not be bound to its {} CPUs: ranks may disturb each other", launch.rank,
                   share.cpus.size());
      share.binds = false;
    }
  }
  set_parallel_threads(share.threads);
  return share;
}

}  // namespace ottava
