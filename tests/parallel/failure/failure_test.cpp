#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace ottava::test;
using Catch::Contains;

namespace {

/// The lines of one rank: `... - ERROR - rank 2: text`, and its account at the end.
std::string of_rank(int rank, const Outcome& outcome) {
  std::istringstream lines(outcome.output);
  std::string line, text;
  while (std::getline(lines, line)) {
    if (line.find("- rank " + std::to_string(rank) + ": ") != std::string::npos) text += line + "\n";
  }
  return text + outcome.accounts()[rank];
}

// Dead processes of that name that somebody should have waited for. Those whose parent is init do not count:
// it will take them away itself.
int zombies_named(const std::string& name) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string pid, command, state, parent;
    file >> pid >> command >> state >> parent;
    count += command == "(" + name + ")" && state == "Z" && parent != "1";
  }
  return count;
}

std::string token_of(const std::string& mode) { return "token-" + mode + "-" + std::to_string(::getpid()); }

// Four ranks; checks that nothing of them stays behind.
Outcome launch(const std::string& mode, const std::string& launcher = LAUNCH_PROGRAM " 4 --grace 20 --",
               const std::function<void(int)>& meanwhile = {}) {
  const std::string token = token_of(mode);
  const Outcome outcome = run_command(launcher + " " + FAILING_RANKS + " " + mode + " " + token, meanwhile);
  INFO(outcome.output);
  CHECK(wait_until(60, [&] { return processes_with(token).empty(); }));
  CHECK(zombies_named("failing_ranks") == 0);
  return outcome;
}

/// Of the four ranks one finds no NCCL.
Outcome launch_without_nccl() {
  const ottava::TemporaryFolder folder;
  return launch("without_nccl",
                "OTTAVA_TEST_LIBRARIES=" + folder.path() + " " LAUNCH_PROGRAM " 4 --grace 20 --");
}

}  // namespace

TEST_CASE("four ranks that do nothing wrong") {
  Outcome o = launch("good");
  INFO(o.output);
  CHECK(o.exit_code == 0);
  for (int r = 0; r < 4; ++r) CHECK_THAT(of_rank(r, o), Contains("ended"));
}

TEST_CASE("a rank killed inside a collective is named by all others") {
  bool first = GENERATE(false, true);  // rank 0 keeps the ledger; then rank 1 answers
  Outcome o = launch(first ? "kill0" : "kill");
  int victim = first ? 0 : 2;
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  for (int r : {0, 1, 2}) {
    if (r == victim) continue;
    CHECK_THAT(of_rank(r, o), Contains("rank " + std::to_string(victim) +
                                       " is gone, last seen in all_reduce 'layers.0' (axis world"));
    CHECK_THAT(of_rank(r, o), Contains("step 4)"));
  }
  CHECK_THAT(of_rank(3, o), Contains("rank " + std::to_string(victim) + " is gone"));
}

#ifdef MPIEXEC
TEST_CASE("under mpirun ranks end well, or all of them with an error") {
  const std::string mode = GENERATE("good", "kill", "throw");
  const Outcome o = launch(mode, MPIEXEC " -n 4 --oversubscribe --allow-run-as-root");
  INFO(o.output);
  CHECK((o.exit_code == 0) == (mode == "good"));
  CHECK_FALSE(o.timed_out);
}

TEST_CASE("ranks that srun started without MPI are told how it starts them, or how they do without") {
  const Outcome o =
      launch("good", "env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4");
  INFO(o.output);
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output,
             Contains("srun (SLURM_STEP_NUM_TASKS) says rank 1 of 4, but MPI says 0 of 1: start the "
                      "ranks with srun --mpi=pmix") &&
                 Contains("or set MASTER_ADDR to rank 0's machine, which needs no MPI"));
}

TEST_CASE("a process in a shell that mpirun's variables were left in is told to unset them") {
  const Outcome o = launch("good", "env OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1");
  INFO(o.output);
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Contains("says rank 1 of 4, but MPI says 0 of 1: ") &&
                           Contains("; if the launcher did not start this process, unset the variables"));
}

TEST_CASE("before MPI ends ranks that srun started without it, rank 0 says how it starts them") {
  const std::string step =
      "env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2";
  const std::string advice =
      "srun has set no variable of PMIx or PMI, by which MPI finds the other ranks: if it fails, start the "
      "ranks with srun --mpi=pmix, or --mpi=pmi2 for MPICH and Intel MPI (srun --mpi=list shows what this "
      "Slurm has), or set MASTER_ADDR";
  CHECK_THAT(launch("good", step).output, Contains(advice));
  CHECK_THAT(launch("good", step + " SLURM_PROCID=1 SLURM_LOCALID=1").output, !Contains(advice));
  CHECK_THAT(launch("good", step + " PMI_FD=3").output, !Contains(advice));
}
#endif

TEST_CASE("after a rank was killed the others may take their time to end") {
  Outcome o = launch("kill_linger");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK(o.seconds > 4);
  CHECK_FALSE(o.timed_out);
  for (int r : {0, 1, 3}) CHECK_THAT(of_rank(r, o), Contains("took its time") && Contains("rank 2 is gone"));
}

TEST_CASE("a rank that does not come is named when the time is up") {
  Outcome o = launch("absent");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  for (int r : {0, 1, 3}) {
    CHECK_THAT(of_rank(r, o), Contains("behind: rank 2 is after all_reduce 'layers.1'") &&
                                  Contains("step 3)") && Contains("are in all_reduce 'layers.0'") &&
                                  Contains("step 4)"));
  }
}

TEST_CASE("a rank is ended even if what hears of its failure hangs") {
  Outcome o = launch("absent_hung");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  CHECK_THAT(of_rank(2, o), Contains("has not come to its end 1 s after the failure"));
}

TEST_CASE("a rank that has failed is ended even if what it gives up last hangs") {
  Outcome o = launch("hangs_at_end", LAUNCH_PROGRAM " 4 --grace 20 --");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  CHECK_THAT(of_rank(2, o),
             Contains("has not come to its end 1 s after the failure") && Contains("no more text"));
}

TEST_CASE("a stage that does not come is named, although others make fewer transfers") {
  Outcome o = launch("absent_stage");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  for (int r : {0, 1, 3}) {
    CHECK_THAT(of_rank(r, o), Contains("behind: rank 2 is after send 'activation' (axis world") &&
                                  Contains("step 3); waiting: rank 0 is in recv 'activation'"));
  }
}

TEST_CASE("a rank that is stopped is named as not answering") {
  Outcome o = launch("stopped", LAUNCH_PROGRAM " 4 --grace 4 --");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  for (int r : {0, 1, 3})
    CHECK_THAT(of_rank(r, o), Contains("rank 2 is not answering, last seen after all_reduce 'layers.1'"));
}

TEST_CASE("a rank that waits for somebody to read its log is named as such") {
  const ottava::TemporaryFolder folder;
  const std::string launcher =
      "export OTTAVA_TEST_FOLDER=" + folder.path() + "; exec " LAUNCH_PROGRAM " 4 --grace 20 --";
  Outcome o = launch("unread", launcher, [&](int launcher) {
    if (!wait_until(100, [&] { return std::filesystem::exists(folder / "waiting"); })) return;
    ::kill(launcher, SIGSTOP);
    std::ofstream(folder / "stopped") << "\n";
    CHECK(wait_until(100, [&] { return processes_with(token_of("unread")).size() <= 2; }));
    ::kill(launcher, SIGCONT);
  });
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  for (int r : {0, 1, 3})
    CHECK_THAT(of_rank(r, o), Contains("made no progress in all_reduce 'layers.0'") &&
                                  Contains("rank 2 is after all_reduce 'layers.1'") &&
                                  Contains("step 3, its log is not read)"));
}

TEST_CASE("a job that was suspended for longer than the time limit goes on") {
  const ottava::TemporaryFolder folder;
  const std::string waiting = folder / "waiting";
  Outcome o =
      launch("suspended", "OTTAVA_TEST_WAITING=" + waiting + " " LAUNCH_PROGRAM " 4 --grace 20 --", [&](int) {
        if (!wait_until(100, [&] { return std::filesystem::exists(waiting); })) return;
        const std::vector<int> processes = processes_with(token_of("suspended"));
        for (int process : processes) ::kill(process, SIGSTOP);
        std::this_thread::sleep_for(std::chrono::seconds(8));
        for (int process : processes) ::kill(process, SIGCONT);
      });
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK(o.seconds > 8);
}

TEST_CASE("a rank that throws stops the others with its reason") {
  Outcome o = launch("throw");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_THAT(of_rank(2, o), Contains("[data] no more text"));
  for (int r : {0, 1, 3}) CHECK_THAT(of_rank(r, o), Contains("rank 2 stopped: [data] no more text"));
}

TEST_CASE("a rank that leaves without a word is gone") {
  Outcome o = launch("exit");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  for (int r : {0, 1, 3}) CHECK_THAT(of_rank(r, o), Contains("rank 2 is gone"));
}

TEST_CASE("ranks with different configurations are refused together") {
  Outcome o = launch("differ");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  for (int r = 0; r < 4; ++r)
    CHECK_THAT(of_rank(r, o), Contains("the configuration differs between ranks") && Contains("rank 2 has"));
}

TEST_CASE("ranks that disagree about a size are told so") {
  Outcome o = launch("sizes");
  INFO(o.output);
  CHECK(o.exit_code != 0);
  for (int r = 0; r < 4; ++r) {
    CHECK_THAT(of_rank(r, o), Contains("the ranks disagree about the call: ranks 0, 1, 3 are in all_reduce "
                                       "'layers.0 of 50000 elements'") &&
                                  Contains("rank 2 is in all_reduce 'layers.0 of 60000 elements'"));
  }
}

TEST_CASE("NCCL that one rank does not have ends all of them") {
  const Outcome o = launch_without_nccl();
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK(o.all_say(4, " cannot continue: on "));
}

TEST_CASE("ranks that NCCL is missing say what to install") {
  if (!ottava::nccl::available()) return skip("this program was built without NCCL");
  const Outcome o = launch_without_nccl();
  INFO(o.output);
  CHECK(o.all_say(4, ": [cuda] the NVIDIA NCCL library, as in pip's nvidia-nccl-cu"));
  CHECK(o.all_say(4, ": install "));
}

TEST_CASE("a rank that may not open the files it needs ends all of them, and they say which and where") {
  const auto [mode, says] = GENERATE(table<std::string, std::string>(
      {{"few_files", "[tcp] rank 2 needs 268 open files among 4 ranks, but "},
       {"few_files0", "[tcp] rank 0 needs 268 open files among 4 ranks, but "}}));
  Outcome o = launch(mode);
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK(o.all_say(4, says));
  CHECK(o.all_say(4, " allows 64: raise ulimit -n there, or use MPI"));
}
