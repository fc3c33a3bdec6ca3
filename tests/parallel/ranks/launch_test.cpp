#include "parallel/ranks/launch.h"

#include <map>
#include <utility>

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using Catch::EndsWith;

namespace {

struct Variables {
  std::map<std::string, std::string> values;
  Environment environment() const {
    return [this](const char* name) -> const char* {
      auto found = values.find(name);
      return found == values.end() ? nullptr : found->second.c_str();
    };
  }
  Launch launch() const { return detect_launch(environment()); }
};

bool is(const Launch& l, Launcher launcher, int rank, int world, int local_rank, int local_size) {
  return l.launcher == launcher && l.rank == rank && l.world_size == world && l.local_rank == local_rank &&
         l.local_size == local_size;
}

}  // namespace

TEST_CASE("launchers are recognised by their variables") {
  CHECK(is(Variables{}.launch(), Launcher::none, 0, 1, 0, 1));
  Variables open_mpi{{{"OMPI_COMM_WORLD_SIZE", "8"},
                      {"OMPI_COMM_WORLD_RANK", "5"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"WORLD_SIZE", "1"}}};
  CHECK(is(open_mpi.launch(), Launcher::mpi, 5, 8, 1, 4));
  Variables mpich{{{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}};
  CHECK(is(mpich.launch(), Launcher::mpi, 3, 4, 3, 4));
  Variables srun{{{"SLURM_STEP_NUM_TASKS", "11"},
                  {"SLURM_PROCID", "9"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_NODEID", "2"},
                  {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}}};
  CHECK(is(srun.launch(), Launcher::slurm, 9, 11, 1, 3));
  Variables torchrun{{{"WORLD_SIZE", "16"}, {"RANK", "9"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}}};
  CHECK(is(torchrun.launch(), Launcher::environment, 9, 16, 1, 8));
  CHECK(torchrun.launch().master.address.empty());
  torchrun.values.insert({{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "4000"}});
  CHECK((torchrun.launch().master.address == "node7" && torchrun.launch().master.port == 4000));
  CHECK(torchrun.launch().source == "torchrun (WORLD_SIZE)");
  for (const char* address : {"[fd00::7]", "fd00::7"}) {
    torchrun.values["MASTER_ADDR"] = address;
    CHECK(torchrun.launch().master.address == "fd00::7");
  }
  Variables own = torchrun;
  own.values["OTTAVA_ACCOUNTS"] = "/proc/self/fd/5";
  CHECK(own.launch().source == "ottava launch (WORLD_SIZE)");
  torchrun.values["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // its agent has taken the port
  CHECK(torchrun.launch().master.port == 4001);
  // Inside a batch script, outside srun: one process.
  CHECK(is(Variables{{{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}}.launch(), Launcher::none, 0, 1, 0, 1));
}

TEST_CASE(
    "RANK and WORLD_SIZE without LOCAL_RANK or LOCAL_WORLD_SIZE leave the place on the machine to be "
    "counted") {
  using LocalPlace = Launch::LocalPlace;
  Variables alone{{{"WORLD_SIZE", "16"}, {"RANK", "9"}}};
  CHECK(is(alone.launch(), Launcher::environment, 9, 16, 9, 16));
  CHECK(alone.launch().local_place == LocalPlace::unknown);
  alone.values["LOCAL_WORLD_SIZE"] = "8";
  CHECK(is(alone.launch(), Launcher::environment, 9, 16, 9, 16));
  CHECK(alone.launch().local_place == LocalPlace::unknown);
  alone.values["LOCAL_RANK"] = "1";
  CHECK(alone.launch().local_place == LocalPlace::known);
  alone.values.erase("LOCAL_WORLD_SIZE");
  CHECK(is(alone.launch(), Launcher::environment, 9, 16, 1, 16));
  CHECK(alone.launch().local_place == LocalPlace::size_unknown);
  CHECK(Variables{{{"WORLD_SIZE", "1"}, {"RANK", "0"}}}.launch().local_place == LocalPlace::known);
  CHECK(Variables{{{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}}.launch().local_place == LocalPlace::known);
}

TEST_CASE("another port for ranks to meet at is given to who chose it") {
  Variables started{{{"WORLD_SIZE", "2"},
                     {"RANK", "0"},
                     {"LOCAL_RANK", "0"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", "4000"}}};
  CHECK(started.launch().master.other_port == "set another MASTER_PORT");
  Variables torchrun = started;
  torchrun.values["TORCHELASTIC_RUN_ID"] = "7";
  CHECK(torchrun.launch().master.other_port ==
        "where torchrun chose the port (--standalone), start it again; else give it another --master-port, "
        "or another --rdzv-endpoint if it has one");
  for (Variables own : {started, torchrun}) {
    own.values["OTTAVA_ACCOUNTS"] = "/proc/self/fd/5";
    CHECK(own.launch().master.other_port == "give every ottava launch another --master-port");
  }
  // srun and mpirun pass it on, also where torchrun started what started them.
  for (const auto& [size, rank] : {std::pair("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
                                   std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")}) {
    const Variables other{{{size, "2"}, {rank, "0"}, {"MASTER_ADDR", "node0"}, {"TORCHELASTIC_RUN_ID", "7"}}};
    CHECK(other.launch().master.other_port == "set another MASTER_PORT");
  }
}

TEST_CASE("of launchers within each other the innermost counts") {
  const std::map<std::string, std::string> agents_step{
      {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "1"},         {"PMI_SIZE", "2"},     {"PMI_RANK", "1"}};
  // srun --ntasks-per-node=1 torchrun --nproc-per-node=4
  Variables torchrun{{{"WORLD_SIZE", "8"},
                      {"RANK", "6"},
                      {"LOCAL_RANK", "2"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "node0"},
                      {"MASTER_PORT", "29500"},
                      {"TORCHELASTIC_RUN_ID", "7"}}};
  torchrun.values.insert(agents_step.begin(), agents_step.end());
  CHECK(is(torchrun.launch(), Launcher::environment, 6, 8, 2, 4));
  torchrun.values.erase("TORCHELASTIC_RUN_ID");
  CHECK(is(torchrun.launch(), Launcher::environment, 6, 8, 2, 4));
  // WORLD_SIZE is the number of agents where torchrun gives ranks an order of its own.
  torchrun.values.insert_or_assign("WORLD_SIZE", "2");
  torchrun.values.insert_or_assign("RANK", "0");
  torchrun.values.insert_or_assign("LOCAL_RANK", "0");
  torchrun.values.insert_or_assign("LOCAL_WORLD_SIZE", "1");
  CHECK_THROWS_WITH(torchrun.launch(),
                    Contains("torchrun says rank 0 of 2 (RANK, WORLD_SIZE)") && Contains("says rank 1 of 2"));
  for (const char* agent : {"TORCHELASTIC_RUN_ID", "OTTAVA_ACCOUNTS"}) {
    Variables known = torchrun;
    known.values[agent] = "7";
    CHECK(is(known.launch(), Launcher::environment, 0, 2, 0, 1));
  }
  // mpirun in a batch script starts its daemons with srun; so does mpiexec.
  Variables mpirun{{{"OMPI_COMM_WORLD_SIZE", "8"},
                    {"OMPI_COMM_WORLD_RANK", "5"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}};
  mpirun.values.insert(agents_step.begin(), agents_step.end());
  CHECK(is(mpirun.launch(), Launcher::mpi, 5, 8, 1, 4));
  Variables mpiexec{
      {{"PMI_SIZE", "8"}, {"PMI_RANK", "5"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}}};
  mpiexec.values.insert(agents_step.begin(), agents_step.end());
  CHECK(is(mpiexec.launch(), Launcher::mpi, 5, 8, 1, 4));
  // MASTER_ADDR=... srun: where rank 0 is, and no more.
  Variables srun{{{"SLURM_STEP_NUM_TASKS", "4"},
                  {"SLURM_PROCID", "3"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_NODEID", "1"},
                  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                  {"MASTER_ADDR", "node0"},
                  {"MASTER_PORT", "29500"},
                  {"WORLD_SIZE", "4"}}};
  CHECK(is(srun.launch(), Launcher::slurm, 3, 4, 1, 2));
  srun.values["RANK"] = "3";
  CHECK(is(srun.launch(), Launcher::slurm, 3, 4, 1, 2));
}

TEST_CASE("launchers that disagree without one within the other are named") {
  Variables mpirun{{{"OMPI_COMM_WORLD_SIZE", "8"},
                    {"OMPI_COMM_WORLD_RANK", "5"},
                    {"RANK", "0"},
                    {"WORLD_SIZE", "1"},
                    {"MASTER_PORT", "29500"}}};
  CHECK_THROWS_WITH(
      mpirun.launch(),
      Contains("mpirun says rank 5 of 8 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), but torchrun "
               "says rank 0 of 1 (RANK, WORLD_SIZE): unset the variables of the launcher"));
  Variables srun{{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"RANK", "3"}, {"WORLD_SIZE", "8"}}};
  CHECK_THROWS_WITH(srun.launch(),
                    Contains("srun says rank 0 of 1") && Contains("torchrun says rank 3 of 8"));
  Variables two{
      {{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}, {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}};
  CHECK_THROWS_WITH(two.launch(),
                    Contains("mpirun says rank 5 of 8") && Contains("mpiexec says rank 1 of 2"));
}

TEST_CASE("ranks of srun --mpi=pmi2 and of Cray's PALS know their place on their machine") {
  Variables pmi2{{{"PMI_SIZE", "11"},
                  {"PMI_RANK", "9"},
                  {"SLURM_STEP_NUM_TASKS", "11"},
                  {"SLURM_PROCID", "9"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_NODEID", "2"},
                  {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}}};
  CHECK(is(pmi2.launch(), Launcher::mpi, 9, 11, 1, 3));
  Variables pals{{{"PMI_SIZE", "8"}, {"PMI_RANK", "5"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}}};
  CHECK(is(pals.launch(), Launcher::mpi, 5, 8, 1, 4));
}

TEST_CASE("variables that make no sense are refused") {
  CHECK_THROWS_WITH((Variables{{{"WORLD_SIZE", "two"}, {"RANK", "0"}}}.launch()),
                    Contains("WORLD_SIZE is 'two'"));
  CHECK_THROWS_WITH((Variables{{{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "70000"}}}.launch()),
                    Contains("MASTER_PORT is 70000"));
  CHECK_THROWS_WITH(
      (Variables{{{"WORLD_SIZE", "2"}}}.launch()),
      Contains("WORLD_SIZE is set but RANK is not, and torchrun sets both: unset it to start one"));
  CHECK_THROWS_WITH((Variables{{{"WORLD_SIZE", "2"}, {"RANK", "2"}}}.launch()), Contains("says rank 2 of 2"));
  CHECK_THROWS_WITH((Variables{{{"SLURM_STEP_NUM_TASKS", "4"},
                                {"SLURM_PROCID", "3"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_NODEID", "5"},
                                {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}}
                         .launch()),
                    Contains("has no entry for this node"));
  CHECK_THROWS_AS((Variables{{{"WORLD_SIZE", "-1"}, {"RANK", "0"}}}.launch()), ConfigError);
}

TEST_CASE("each rank has its GPU") {
  Launch third{
      .launcher = Launcher::mpi, .rank = 2, .world_size = 4, .local_rank = 2, .local_size = 4, .source = {}};
  CHECK(choose_gpu(third, 4, GpuSharing::forbidden) == 2);
  CHECK(choose_gpu(third, 1, GpuSharing::forbidden) == 0);
  CHECK(choose_gpu(third, 2, GpuSharing::allowed) == 0);
  CHECK_THROWS_WITH(
      choose_gpu(third, 2, GpuSharing::forbidden),
      Contains("4 ranks on") && Contains("would share 2 GPUs") && EndsWith(advice_of_hidden_gpus(third, 2)));
  CHECK(
      advice_of_hidden_gpus(third, 1) ==
      "; rank 2 sees 1 GPU, and its machine has 4 ranks: if it has more GPUs, show all of them to each rank "
      "(Slurm: --gpus-per-node in place of --gpus-per-task, and --gpu-bind=none)");
  CHECK(advice_of_hidden_gpus(third, 4).empty());
  CHECK_THROWS_WITH(choose_gpu(third, 0, GpuSharing::allowed), Contains("sees no GPU"));
  Variables devices{{{"CUDA_VISIBLE_DEVICES", "3,GPU-77"}}};
  CHECK_THAT(gpu_title(1, devices.environment()), Catch::EndsWith("/GPU-77"));
  CHECK_THAT(gpu_title(5, Variables{}.environment()), Catch::EndsWith("/5"));
  // Each rank may see one GPU, which is number 0 for all of them.
  CHECK_NOTHROW(require_own_gpus({"GPU-1", "GPU-2", "GPU-3"}, {"a/0", "a/0", "a/0"}));
  CHECK_THROWS_WITH(require_own_gpus({"GPU-1", "GPU-2", "GPU-3", "GPU-2"}, {"a/0", "a/1", "b/0", "c/1"}),
                    Contains("ranks 1 and 3 would share one GPU (c/1)"));
}

TEST_CASE("LOG_RANK chooses whose lines are shown") {
  CHECK(shows_log(0, Variables{}.environment()));
  CHECK_FALSE(shows_log(1, Variables{}.environment()));
  Variables some{{{"LOG_RANK", "0,3"}}};
  CHECK(shows_log(3, some.environment()));
  CHECK_FALSE(shows_log(1, some.environment()));
  CHECK_THROWS_WITH(shows_log(1, Variables{{{"LOG_RANK", "all"}}}.environment()),
                    Contains("LOG_RANK is 'all'"));
}
