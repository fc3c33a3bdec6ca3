#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/bootstrap.h"
#include "parallel/ranks/launch.h"

namespace ottava {

/// The ranks of one machine, and the CPUs on which each may run: whatever let it run there, a launcher, a
/// control group or taskset.
struct MachineCpus {
  std::vector<int> ranks;                 ///< ascending
  std::vector<std::vector<int>> allowed;  ///< of each of them, CPU numbers in ascending order
  size_t self = 0;                        ///< which of them this rank is
};
/// All ranks call it, once MPI, if they meet by it, has bound them or not. A machine is what was booted at
/// once: containers and network namespaces of one machine share its CPUs. Throws CommError.
MachineCpus gather_machine_cpus(Bootstrap& ranks);
/// What each rank said of itself, by rank ("machine 0-3,8"), as rank `self` sees it.
MachineCpus machine_cpus(const std::vector<std::string>& said, int self);
/// This process without others.
MachineCpus own_cpus();

/// The CPUs a rank computes on.
struct CpuShare {
  std::vector<int> cpus;
  int threads = 1;     ///< for parallel_for: physical cores among `cpus`, as many as `quota` lets run
  bool binds = false;  ///< whether the process has to be bound to `cpus`
  std::optional<double> quota;  ///< how many CPUs' time the rank may use, if that is limited (cpu_quota.h)
};
/// Ranks that may run on the same CPUs have them split evenly among them (contiguous, in core order); with
/// more such ranks than CPUs, they share them and nothing is bound. A rank whose CPUs no other has, or that
/// shares only some of them (cpu_warnings()), keeps what it was given. `quota` is the rank's part: threads
/// beyond it would wait for each other while they are not let run. OMP_NUM_THREADS, if set, decides
/// `threads`. `core_of` gives the physical core of a CPU. Throws ConfigError.
CpuShare share_cpus(const MachineCpus& machine, const std::function<int(int)>& core_of,
                    const Environment& environment = process_environment(), std::optional<double> quota = {});
/// What the first of so many ranks would have on this machine, of the CPUs that this process may use.
CpuShare cpu_share(int ranks);
/// Shares, binds all threads of the process, and gives parallel_for() on the calling thread that many
/// threads.
CpuShare apply_cpu_share(const Launch& launch, const MachineCpus& machine);

/// In sentences, which ranks of the machine run on the same CPUs, or divide them with ranks of which their
/// launcher does not know, and which CPUs the launcher leaves idle.
/// `launchers` are the CPUs of the process that started this one.
std::vector<std::string> cpu_warnings(const Launch& launch, const MachineCpus& machine,
                                      const std::vector<int>& launchers,
                                      const Environment& environment = process_environment());

}  // namespace ottava
