#include "parallel/ranks/cpu_share.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/threads/allowed_cpus.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;

namespace {

using Cpus = std::vector<int>;

Environment environment_of(const std::map<std::string, std::string>& values) {
  return [&values](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}
const std::map<std::string, std::string> kNothing;

int every_cpu_a_core(int cpu) { return cpu; }
int two_threads_a_core(int cpu) { return cpu % 4; }

// Ranks of one machine with these CPUs, as rank `self` sees them.
MachineCpus machine_of(const std::vector<std::string>& lists, int self = 0) {
  std::vector<std::string> said;
  for (const std::string& list : lists) said.push_back("here " + list);
  return machine_cpus(said, self);
}
CpuShare share_of(const std::vector<std::string>& lists, int self) {
  return share_cpus(machine_of(lists, self), every_cpu_a_core, environment_of(kNothing));
}

// The cpus and threads of each rank.
std::vector<std::string> shares_of(const std::vector<std::string>& lists) {
  std::vector<std::string> shares;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const CpuShare share = share_of(lists, static_cast<int>(rank));
    shares.push_back(cpu_list(share.cpus) + " x" + std::to_string(share.threads) +
                     (share.binds ? " binds" : ""));
  }
  return shares;
}

std::string warnings_of(Launch launch, const std::vector<std::string>& lists,
                        const std::string& launchers = "",
                        const std::map<std::string, std::string>& variables = kNothing) {
  std::string all;
  if (launch.local_size == 1) launch.local_size = static_cast<int>(lists.size());
  for (const std::string& text :
       cpu_warnings(launch, machine_of(lists), parse_cpu_list(launchers), environment_of(variables)))
    all += text + "\n";
  return all;
}
Launch by_mpi(const char* source = "mpirun (OMPI_COMM_WORLD_SIZE)") {
  return {.launcher = Launcher::mpi, .source = source, .master = {}};
}

}  // namespace

TEST_CASE("a machine's ranks and their CPUs are told from others'") {
  const std::vector<std::string> said = {"a 0-3,8", "b 0", "a 2", "b ", "a 1"};
  const MachineCpus machine = machine_cpus(said, 2);
  CHECK(machine.ranks == Cpus{0, 2, 4});
  CHECK(machine.allowed == std::vector<Cpus>{{0, 1, 2, 3, 8}, {2}, {1}});
  CHECK(machine.self == 1);
  CHECK(machine_cpus(said, 3).allowed == std::vector<Cpus>{{0}, {}});
}

TEST_CASE("ranks that may run on the same CPUs have them split among them") {
  const Cpus eight = {0, 1, 2, 3, 4, 5, 6, 7};
  using Shares = std::vector<std::string>;
  CHECK(shares_of({"0-7", "0-7", "0-7", "0-7"}) ==
        Shares{"0-1 x2 binds", "2-3 x2 binds", "4-5 x2 binds", "6-7 x2 binds"});
  CHECK(shares_of({"0-7", "0-7", "0-7"}) == Shares{"0-1 x2 binds", "2-4 x3 binds", "5-7 x3 binds"});
  CHECK(shares_of({"0-1", "0-1", "0-1"}) == Shares{"0-1 x1", "0-1 x1", "0-1 x1"});
  CHECK(shares_of({""}) == Shares{" x1"});
  CHECK(shares_of({"", ""}) == Shares{" x1", " x1"});
  const MachineCpus four = machine_of({"0-7", "0-7", "0-7", "0-7"}, 1);
  // CPUs 1 and 5 are one core.
  const CpuShare share = share_cpus(four, two_threads_a_core, environment_of(kNothing));
  CHECK((share.cpus == Cpus{1, 5} && share.threads == 1 && share.binds));
  const CpuShare alone = share_cpus(machine_of({"0-7"}), two_threads_a_core, environment_of(kNothing));
  CHECK((alone.threads == 4 && !alone.binds && alone.cpus == eight));
}

TEST_CASE("whatever bound ranks to CPUs of their own, they keep them") {
  using Shares = std::vector<std::string>;
  CHECK(shares_of({"0-3", "4-7"}) == Shares{"0-3 x4", "4-7 x4"});
  // Two sockets, two ranks on each.
  CHECK(shares_of({"0-3", "4-7", "0-3", "4-7"}) ==
        Shares{"0-1 x2 binds", "4-5 x2 binds", "2-3 x2 binds", "6-7 x2 binds"});
  CHECK(shares_of({"0", "1", "0"}) == Shares{"0 x1", "1 x1", "0 x1"});
  CHECK(shares_of({"0-3", "2-5"}) == Shares{"0-3 x4", "2-5 x4"});
}

TEST_CASE("OMP_NUM_THREADS and a quota of CPU time decide how many threads a rank has") {
  const MachineCpus one = machine_of({"0-7"});
  const auto threads = [&](const char* variable, std::optional<double> quota = {}) {
    const std::map<std::string, std::string> values{{"OMP_NUM_THREADS", variable}};
    return share_cpus(one, every_cpu_a_core, environment_of(values), quota).threads;
  };
  CHECK(threads("5") == 5);
  CHECK(threads("3,2") == 3);  // for levels of nested regions
  CHECK(threads("3,2", 1.0) == 3);
  CHECK(threads("") == 8);
  CHECK_THROWS_WITH(threads("x,2"),
                    "[launch] OMP_NUM_THREADS is 'x', expected a number that is not negative");
  for (const auto& [quota, expected] : {std::pair(100.0, 8), {2.5, 3}, {2.0, 2}, {0.5, 1}}) {
    const CpuShare share = share_cpus(one, every_cpu_a_core, environment_of(kNothing), quota);
    CHECK((share.threads == expected && share.quota == quota && share.cpus.size() == 8));
  }
}

TEST_CASE("ranks that share CPUs are told") {
  CHECK(warnings_of({}, {"0-3", "0-3"}).empty());
  CHECK(warnings_of({}, {"0-3", "4-7", "0-3"}).empty());
  CHECK(warnings_of({}, {"", ""}).empty());
  CHECK(warnings_of({}, {"0", "1", "0"}) ==
        "ranks 0, 2 share 1 CPU (0) and wait for each other: start fewer ranks on this machine, or have the "
        "launcher let them run on more CPUs\n");
  CHECK_THAT(warnings_of({}, {"0-1", "0-1", "0-1", "2", "2"}),
             Contains("ranks 0, 1, 2 share 2 CPUs (0-1)") && Contains("ranks 3, 4 share 1 CPU (2)"));
  CHECK(warnings_of({}, {"0-3", "4", "2-5"}) ==
        "rank 0 may run on CPUs 0-3 and rank 2 on CPUs 2-5, and both use 2-3: bind ranks to CPUs that are "
        "the same, which are divided among them, or that have none in common\n");
}

TEST_CASE("ranks of which the launcher does not know, on the same machine, are told") {
  const Launch pod{.local_rank = 1, .local_size = 2, .source = {}, .master = {}};
  CHECK(warnings_of(pod, {"0-3", "0-3", "0-3", "0-3"}) ==
        "ranks 0, 1, 2, 3 run on one machine (by its boot_id), of which the launcher counts 2: its CPUs "
        "(0-3) are divided among all of them\n");
  CHECK(warnings_of(pod, {"0-3", "0-3", "4-7", "4-7"}).empty());
  CHECK_THAT(warnings_of(pod, {"0-1", "0-1", "0-1"}), Contains("share 2 CPUs") && !Contains("boot_id"));
}

TEST_CASE("CPUs that a launcher leaves idle are told") {
  const std::map<std::string, std::string> ompi{{"OMPI_COMM_WORLD_SIZE", "2"}};
  CHECK(warnings_of(by_mpi(), {"0", "1"}, "0-1", ompi).empty());
  CHECK(warnings_of(by_mpi(), {"0", "1"}, "", ompi).empty());
  CHECK(warnings_of({}, {"0", "1"}, "0-63").empty());  // as somebody wanted it
  const std::string idle =
      " lets the ranks of this machine run on 2 of 64 CPUs (0-1): start them unbound (mpirun --bind-to none, "
      "mpiexec without -bind-to, I_MPI_PIN=0), and they divide all of its CPUs among them\n";
  CHECK(warnings_of(by_mpi(), {"0", "1"}, "0-63", ompi) == "mpirun (OMPI_COMM_WORLD_SIZE)" + idle);
  CHECK(warnings_of(by_mpi("mpiexec (PMI_SIZE)"), {"0", "1"}, "0-63") == "mpiexec (PMI_SIZE)" + idle);
  std::map<std::string, std::string> step{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_CPUS_PER_TASK", "12"}};
  const std::string few =
      "rank 0 may run on 1 CPU (0), but the job has 12 for each task (SLURM_CPUS_PER_TASK): give srun "
      "--cpus-per-task=12 too, which does not take it from sbatch\n";
  const Launch srun{.launcher = Launcher::slurm, .source = {}, .master = {}};
  CHECK(warnings_of(srun, {"0", "1"}, "0-63", step) == few);
  CHECK(warnings_of(by_mpi("mpiexec (PMI_SIZE)"), {"0", "1"}, "0-63", step) == few);  // srun --mpi=pmi2
  CHECK(warnings_of(srun, {"0-11", "12-23"}, "0-63", step).empty());
  step.erase("SLURM_CPUS_PER_TASK");
  CHECK(warnings_of(srun, {"0", "1"}, "0-63", step).empty());
}

TEST_CASE("the machine's own CPUs are shared") {
  CHECK(apply_cpu_share({}, own_cpus()).threads >= 1);
  CHECK(cpu_share(1).cpus == allowed_cpus());
}
