// A program whose ranks fail in one way or another; failure_test.cpp starts it over TCP and under mpirun and
// reads what it says.
//     failing_ranks MODE TOKEN      (TOKEN only marks its processes)
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "parallel/comm/agree.h"
#include "parallel/ranks/world.h"

using namespace ottava;

namespace {

constexpr int kVictim = 2;

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Many times the 20 ms after which a rank tells the ledger where it is.
constexpr int kUntilTheLedgerKnows = 500;

void one_step(World& world, int step, std::vector<float>& x) {
  Stream stream = Stream::cpu();
  world.control->state().set_step(step);
  for (const char* label : {"layers.0", "layers.1"}) {
    world.control
        ->all_reduce(stream, {.send = view_of(x.data(), {static_cast<int64_t>(x.size())}), .label = label})
        .wait(stream);
  }
}

// There and back through all ranks: those at the ends make half as many transfers as the others.
void pipeline_step(World& world, int step, std::vector<float>& x) {
  Stream stream = Stream::cpu();
  Communicator& comm = *world.control;
  comm.state().set_step(step);
  const Tensor tensor = view_of(x.data(), {static_cast<int64_t>(x.size())});
  const int rank = comm.rank(), last = comm.size() - 1;
  const auto receive = [&](int from) { comm.recv(stream, {tensor, from, "activation"}).wait(stream); };
  const auto send = [&](int to) { comm.send(stream, {tensor, to, "activation"}).wait(stream); };
  if (rank > 0) receive(rank - 1);
  if (rank < last) send(rank + 1);
  if (rank < last) receive(rank + 1);
  if (rank > 0) send(rank - 1);
}

void run(World& world, const std::string& mode) {
  Communicator& comm = *world.control;
  comm.state().set_timeout_seconds(600.0);  // longer than failure_test.cpp lets a run hang
  std::vector<float> x(50'000, 1.0f);
  int victim = mode.ends_with("0") ? 0 : kVictim;
  const auto step = mode == "absent_stage" ? pipeline_step : one_step;
  for (int number = 1; number <= 3; ++number) step(world, number, x);
  if (mode == "good") return;
  if (mode == "suspended") {
    // failure_test.cpp stops all processes for longer than this, while the others wait for the victim.
    comm.state().set_timeout_seconds(5.0);
    if (comm.rank() == kVictim) {
      std::ofstream(std::getenv("OTTAVA_TEST_WAITING")) << "\n";
      pause_ms(3'000);
    }
    return step(world, 4, x);
  }
  if (mode == "unread") {
    // failure_test.cpp stops the launcher, which reads what the victim says, and then makes `stopped`.
    comm.state().set_timeout_seconds(8.0);
    const std::string folder = std::getenv("OTTAVA_TEST_FOLDER");
    if (comm.rank() == kVictim) {
      std::ofstream(folder + "/waiting") << "\n";
      for (const std::string line(1000, '.'); !comm.state().failed(); pause_ms(5)) log::warning("{}", line);
    }
    while (!std::ifstream(folder + "/stopped")) pause_ms(5);
  }
  // Short only now: on a busy machine ranks come to their first call seconds apart, and to this one not at
  // once.
  const bool is_absent = mode.starts_with("absent");
  if (is_absent || mode == "stopped" || mode == "sizes") comm.state().set_timeout_seconds(2.0);
  pause_ms(kUntilTheLedgerKnows);
  if (mode == "differ")
    return require_equal_everywhere(comm, "the configuration", comm.rank() == victim ? 1 : 0);
  bool is_victim = comm.rank() == victim;
  if (mode == "sizes" && is_victim) x.resize(60'000);
  if ((mode == "throw" || mode == "hangs_at_end") && is_victim) throw DataError("data", "no more text");
  if (mode == "absent_hung" && is_victim)  // as if it wrote to a file system that does not answer
    comm.state().on_failure([](const std::string&) { pause_ms(120'000); });
  if (is_absent && is_victim) pause_ms(120'000);
  if (mode == "stopped" && is_victim) std::raise(SIGSTOP);
  if (mode == "exit" && is_victim) std::_Exit(0);
  // kill: the victim dies inside the call, because rank 3 keeps everybody waiting in it until it hears of
  // that.
  if (mode.starts_with("kill") && is_victim) {
    std::thread([state = comm.shared_state()] {
      const auto is_inside = [](const ProgressRecord& at) {
        return at.step == 4 && at.state == ProgressRecord::State::inside;
      };
      while (!is_inside(state->progress())) pause_ms(5);
      pause_ms(kUntilTheLedgerKnows);
      std::raise(SIGKILL);
    }).detach();
  }
  if (mode.starts_with("kill") && comm.rank() == 3) {
    for (int i = 0; i < 6000 && !comm.state().failed(); ++i) pause_ms(5);
  }
  try {
    step(world, 4, x);
  } catch (const CommError& error) {
    if (mode != "kill_linger") throw;
    pause_ms(4'000);
    fail<CommError>("linger", "took its time: {}", error.what());
  }
}

// The program again, which finds another library, without functions, under the name of NCCL's: the loader
// reads its path when a program starts.
void hide_nccl(char** argv) {
  const std::string folder = std::getenv("OTTAVA_TEST_LIBRARIES");
  const char* path = std::getenv("LD_LIBRARY_PATH");
  if (path && folder == path) return;
  Dl_info c_library{};
  ::dladdr(reinterpret_cast<void*>(&::getpid), &c_library);
  if (::symlink(c_library.dli_fname, (folder + "/libnccl.so.2").c_str()) != 0) std::exit(3);
  ::setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  ::execv("/proc/self/exe", argv);
}

// The victim comes to the others long before them.
void leave_few_files(bool is_victim) {
  constexpr rlim_t kFew = 64;
  if (!is_victim) return pause_ms(kUntilTheLedgerKnows);
  const rlimit limit{kFew, kFew};
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  Launch launch = detect_launch();
  try {
    const std::string mode = argv[1];
    const bool asks_for_nccl = mode == "without_nccl";
    if (asks_for_nccl && launch.rank == kVictim) hide_nccl(argv);
    if (mode.starts_with("few_files")) leave_few_files(launch.rank == (mode.ends_with("0") ? 0 : kVictim));
    using Backend = CommConfig::Backend;
    const Backend backend = asks_for_nccl                              ? Backend::nccl
                            : launch.launcher == Launcher::environment ? Backend::tcp
                                                                       : Backend::mpi;
    // The absent rank is in no call, and nothing but its ledger can end it; nor one that hangs afterwards.
    const bool hangs = mode.starts_with("absent") || mode == "hangs_at_end";
    const double last_seconds = hangs && launch.rank == kVictim ? 1 : 20;
    run_rank(launch,
             {.init_timeout_seconds = 200,
              .backend = backend,
              .last_seconds = last_seconds,
              .find_device =
                  [&] {
                    return asks_for_nccl ? Device{DeviceType::cuda, 0} : Device{};
                  }},
             [&](World& world) { run(world, mode); });
  } catch (const std::exception& error) {
    // As communicators of NCCL's that do not end.
    if (std::string(argv[1]) == "hangs_at_end" && launch.rank == kVictim) pause_ms(120'000);
    return report_failure(launch, error);
  }
  log::set_rank({launch.rank, launch.world_size, false});
  log::warning("ended");
}
