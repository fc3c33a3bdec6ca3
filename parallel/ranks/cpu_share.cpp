#include "parallel/ranks/cpu_share.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/listed.h"
#include "core/text/number.h"
#include "core/text/split.h"
#include "core/threads/allowed_cpus.h"
#include "core/threads/parallel_for.h"
#include "parallel/ranks/cpu_quota.h"

namespace ottava {
namespace {

std::string machine_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot.empty() ? host_name("unnamed") : boot;
}

// Hyperthreads of one core list the same siblings, the lowest first ("3,67"); without the file a CPU is its
// own core.
int core_of_cpu(int cpu) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  int core = cpu;
  file >> core;
  return file ? core : cpu;
}

// OpenMP's list has a number for each level of nested regions; here there is one level.
int omp_threads(const Environment& environment) {
  const char* text = environment("OMP_NUM_THREADS");
  if (!text || !*text) return 0;
  const std::string_view first = split_text(text, ',').front();
  const int threads = parse_number<int>(first).value_or(-1);
  if (threads < 0)
    fail<ConfigError>("launch", "OMP_NUM_THREADS is '{}', expected a number that is not negative", first);
  return threads;
}

// Those of the machine's ranks that have the CPUs of the one with index `of`, as indices.
std::vector<size_t> ranks_alike(const MachineCpus& machine, size_t of) {
  std::vector<size_t> alike;
  for (size_t i = 0; i < machine.ranks.size(); ++i)
    if (machine.allowed[i] == machine.allowed[of]) alike.push_back(i);
  return alike;
}

std::vector<int> common(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

// "ranks 0, 1, 2"
std::string rank_names(const MachineCpus& machine, const std::vector<size_t>& indices) {
  constexpr size_t kNamed = 8;
  return "ranks " + listed(
                        indices, [&](size_t i) { return std::to_string(machine.ranks[i]); }, kNamed);
}

// More ranks than CPUs.
void warn_of_crowds(const MachineCpus& machine, std::vector<std::string>& warnings) {
  for (size_t i = 0; i < machine.ranks.size(); ++i) {
    const std::vector<int>& cpus = machine.allowed[i];
    const std::vector<size_t> alike = ranks_alike(machine, i);
    if (alike.front() != i || cpus.empty() || alike.size() <= cpus.size()) continue;
    warnings.push_back(
        fmt::format("{} share {} ({}) and wait for each other: start fewer ranks on this machine, or have "
                    "the launcher let them run on more CPUs",
                    rank_names(machine, alike), counted(cpus.size(), "CPU"), cpu_list(cpus)));
  }
}

// Containers and network namespaces, or virtual machines that went on from one snapshot.
void warn_of_containers(const Launch& launch, const MachineCpus& machine,
                        std::vector<std::string>& warnings) {
  for (size_t i = 0; i < machine.ranks.size(); ++i) {
    const std::vector<size_t> alike = ranks_alike(machine, i);
    if (alike.front() != i || std::ssize(alike) <= launch.local_size) continue;
    if (machine.allowed[i].size() < alike.size()) continue;  // warn_of_crowds()
    warnings.push_back(fmt::format(
        "{} run on one machine (by its boot_id), of which the launcher counts {}: its CPUs ({}) are divided "
        "among all of them",
        rank_names(machine, alike), launch.local_size, cpu_list(machine.allowed[i])));
  }
}

// The first two ranks that share some of their CPUs.
void warn_of_overlap(const MachineCpus& machine, std::vector<std::string>& warnings) {
  for (size_t i = 0; i < machine.ranks.size(); ++i) {
    for (size_t j = i + 1; j < machine.ranks.size(); ++j) {
      const std::vector<int>& a = machine.allowed[i];
      const std::vector<int>& b = machine.allowed[j];
      if (a == b || common(a, b).empty()) continue;
      return warnings.push_back(fmt::format(
          "rank {} may run on CPUs {} and rank {} on CPUs {}, and both use {}: bind ranks to CPUs that are "
          "the same, which are divided among them, or that have none in common",
          machine.ranks[i], cpu_list(a), machine.ranks[j], cpu_list(b), cpu_list(common(a, b))));
    }
  }
}

// Since Slurm 22.05 srun does not take the number from sbatch.
void warn_of_srun(const MachineCpus& machine, const Environment& environment,
                  std::vector<std::string>& warnings) {
  const char* text = environment("SLURM_CPUS_PER_TASK");
  const int asked = text ? parse_number<int>(text).value_or(0) : 0;
  const std::vector<int>& cpus = machine.allowed[machine.self];
  if (cpus.empty() || std::ssize(cpus) >= asked) return;
  warnings.push_back(
      fmt::format("rank {} may run on {} ({}), but the job has {} for each task (SLURM_CPUS_PER_TASK): give "
                  "srun --cpus-per-task={} too, which does not take it from sbatch",
                  machine.ranks[machine.self], counted(cpus.size(), "CPU"), cpu_list(cpus), asked, asked));
}

// OpenMPI binds each of one or two ranks to one core.
void warn_of_mpi(const Launch& launch, const MachineCpus& machine, const std::vector<int>& launchers,
                 std::vector<std::string>& warnings) {
  std::set<int> used;
  for (const std::vector<int>& cpus : machine.allowed) used.insert(cpus.begin(), cpus.end());
  if (used.empty() || used.size() >= launchers.size() || !std::ranges::includes(launchers, used)) return;
  warnings.push_back(fmt::format(
      "{} lets the ranks of this machine run on {} of {} ({}): start them unbound (mpirun --bind-to none, "
      "mpiexec without -bind-to, I_MPI_PIN=0), and they divide all of its CPUs among them",
      launch.source, used.size(), counted(launchers.size(), "CPU"), cpu_list({used.begin(), used.end()})));
}

}  // namespace

MachineCpus machine_cpus(const std::vector<std::string>& said, int self) {
  const auto machine_of = [](std::string_view text) { return text.substr(0, text.find(' ')); };
  const std::string_view here = machine_of(said[static_cast<size_t>(self)]);
  MachineCpus machine;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (machine_of(said[rank]) != here) continue;
    if (static_cast<int>(rank) == self) machine.self = machine.ranks.size();
    machine.ranks.push_back(static_cast<int>(rank));
    machine.allowed.push_back(parse_cpu_list(std::string_view(said[rank]).substr(here.size() + 1)));
  }
  return machine;
}

MachineCpus gather_machine_cpus(Bootstrap& ranks) {
  return machine_cpus(ranks.all_gather(machine_identity() + " " + cpu_list(allowed_cpus())), ranks.rank());
}

MachineCpus own_cpus() { return {.ranks = {0}, .allowed = {allowed_cpus()}}; }

CpuShare share_cpus(const MachineCpus& machine, const std::function<int(int)>& core_of,
                    const Environment& environment, std::optional<double> quota) {
  CpuShare share{.cpus = machine.allowed[machine.self]};
  const std::vector<size_t> alike = ranks_alike(machine, machine.self);
  const int64_t n = std::ssize(share.cpus), ranks = std::ssize(alike);
  if (ranks > 1 && n >= ranks) {
    const int64_t r = std::ranges::find(alike, machine.self) - alike.begin();
    std::ranges::stable_sort(share.cpus, {}, core_of);
    share.cpus = {share.cpus.begin() + n * r / ranks, share.cpus.begin() + n * (r + 1) / ranks};
    share.binds = true;
  }
  std::set<int> cores;
  for (int cpu : share.cpus) cores.insert(core_of(cpu));
  share.threads = std::max<int>(static_cast<int>(cores.size()), 1);
  if (n < ranks) share.threads = 1;
  if (quota) {
    share.quota = *quota;
    if (*share.quota < share.threads) share.threads = std::max(static_cast<int>(std::ceil(*share.quota)), 1);
  }
  if (const int asked = omp_threads(environment); asked > 0) share.threads = asked;
  return share;
}

namespace {

// The ranks that the launcher counts on a machine are those of a container, which has the quota.
CpuShare share_with_quota(const MachineCpus& machine, int ranks) {
  std::optional<double> quota = cpu_quota();
  if (quota) *quota /= ranks;
  return share_cpus(machine, core_of_cpu, process_environment(), quota);
}

}  // namespace

CpuShare cpu_share(int ranks) {
  MachineCpus machine{.ranks = {}, .allowed = std::vector(static_cast<size_t>(ranks), allowed_cpus())};
  for (int rank = 0; rank < ranks; ++rank) machine.ranks.push_back(rank);
  return share_with_quota(machine, ranks);
}

CpuShare apply_cpu_share(const Launch& launch, const MachineCpus& machine) {
  CpuShare share = share_with_quota(machine, launch.local_size);
  if (share.binds && !allow_cpus_everywhere(share.cpus)) {
    log::warning("rank {} could not be bound to its {}: ranks may disturb each other", launch.rank,
                 counted(share.cpus.size(), "CPU"));
    share.binds = false;
  }
  set_parallel_threads(share.threads);
  return share;
}

std::vector<std::string> cpu_warnings(const Launch& launch, const MachineCpus& machine,
                                      const std::vector<int>& launchers, const Environment& environment) {
  std::vector<std::string> warnings;
  warn_of_crowds(machine, warnings);
  warn_of_containers(launch, machine, warnings);
  warn_of_overlap(machine, warnings);
  const bool is_step = environment("SLURM_STEP_NUM_TASKS") != nullptr;
  const bool is_mpirun = launch.launcher == Launcher::mpi && environment("OMPI_COMM_WORLD_SIZE");
  if (is_mpirun || (launch.launcher == Launcher::mpi && !is_step))
    warn_of_mpi(launch, machine, launchers, warnings);
  else if (is_step)
    warn_of_srun(machine, environment, warnings);
  return warnings;
}

}  // namespace ottava
