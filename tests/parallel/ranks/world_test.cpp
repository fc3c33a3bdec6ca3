#include "parallel/ranks/world.h"

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/host_name.h"
#include "parallel/comm/sockets/held_port.h"
#include "tests/parallel/comm/rank_threads.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;

namespace {

using Backend = CommConfig::Backend;

// Alone, whatever the launcher says.
Launch started_by(Launcher launcher) {
  return {.launcher = launcher, .source = "a launcher of one rank", .master = {}};
}

// What each of three ranks throws.
std::vector<std::string> errors_of_three(Backend backend, const std::function<Device(int rank)>& device_of) {
  const HeldPort port;
  return test::run_ranks(3, [&](int r) {
    const Launch launch{.launcher = Launcher::environment,
                        .rank = r,
                        .world_size = 3,
                        .source = "torchrun (RANK)",
                        .master = {"127.0.0.1", port.number()}};
    run_rank(launch,
             {.init_timeout_seconds = 60,
              .backend = backend,
              .last_seconds = 0,  // of a thread: the process goes on
              .find_device = [&] { return device_of(r); }},
             [](World&) {});
  });
}

}  // namespace

TEST_CASE("a world of one rank needs no transport, whatever started it") {
  const Launcher launcher = GENERATE(Launcher::none, Launcher::mpi, Launcher::slurm, Launcher::environment);
  const Backend backend = GENERATE(Backend::automatic, Backend::mpi, Backend::tcp);
  int ran = 0;
  run_rank(started_by(launcher), {.backend = backend}, [&](World& world) {
    CHECK((world.control->size() == 1 && world.control->rank() == 0));
    CHECK(&world.tensors() == world.control.get());
    ++ran;
  });
  CHECK(ran == 1);
}

TEST_CASE("ranks that a launcher started without MPI do not look for one another by MPI") {
  const Launch launch{.launcher = Launcher::environment,
                      .world_size = 2,
                      .source = "torchrun (RANK)",
                      .master = {.address = "127.0.0.1"}};
  CHECK_THROWS_WITH(run_rank(launch, {.backend = Backend::mpi}, [](World&) {}),
                    "[world] comm.backend is mpi, but the ranks were started by torchrun (RANK): start them "
                    "with mpirun or srun --mpi=pmix, or set comm.backend to auto");
}

TEST_CASE("a world of one rank refuses a backend that its device has not") {
  const Launcher launcher = GENERATE(Launcher::none, Launcher::environment);
  CHECK_THROWS_WITH(run_rank(started_by(launcher), {.backend = Backend::nccl}, [](World&) {}),
                    Contains("comm.backend is nccl, but the device is cpu"));
}

TEST_CASE("ranks of which some have a GPU and others none refuse together") {
  const std::vector<std::string> errors = errors_of_three(Backend::tcp, [](int rank) {
    return Device{rank == 2 ? DeviceType::cpu : DeviceType::cuda, 0};
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::StartsWith("[world] rank 0 trains on a GPU of ") &&
                          Contains(", but rank 2 on the CPU of ") &&
                          Catch::EndsWith(": all ranks need GPUs that can be used, or training.device cpu"));
  }
}

TEST_CASE("a rank that cannot have its device, or not with NCCL, ends all of them with machine and reason") {
  const auto [backend, says] = GENERATE(table<Backend, std::string>({
      {Backend::tcp, ": [device] 'cuda' cannot be used: it is on fire"},
      {Backend::nccl, ": [world] comm.backend is nccl, but the device is cpu"},
  }));
  const std::vector<std::string> errors = errors_of_three(backend, [&](int rank) -> Device {
    if (rank == 1 && backend == Backend::tcp)
      fail<DeviceError>("device", "'cuda' cannot be used: it is on fire");
    std::this_thread::sleep_for(std::chrono::milliseconds(rank == 1 ? 0 : 300));
    return {};
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::StartsWith(fmt::format("[ranks] rank {} cannot continue: on {}{}",
                                                    backend == Backend::tcp ? 1 : 0, host_name("its machine"),
                                                    says)));
  }
}
