#include "parallel/ranks/world.h"

#include <thread>
#include <vector>

#include "core/error.h"
#include "parallel/comm/sockets/held_port.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;

namespace {

// Alone, whatever the launcher says.
Launch started_by(Launcher launcher) {
  return {.launcher = launcher, .source = "a launcher of one rank", .master = {}};
}

}  // namespace

TEST_CASE("a world of one rank needs no transport, whatever started it") {
  const Launcher launcher = GENERATE(Launcher::none, Launcher::mpi, Launcher::slurm, Launcher::environment);
  const std::string backend = GENERATE("auto", "mpi", "tcp");
  int ran = 0;
  run_rank(started_by(launcher), {.backend = backend, .device = {}}, [&](World& world) {
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
  CHECK_THROWS_WITH(run_rank(launch, {.backend = "mpi", .device = {}}, [](World&) {}),
                    "[world] comm.backend is mpi, but the ranks were started by torchrun (RANK): start them "
                    "with mpirun or srun --mpi=pmix, or set comm.backend to auto");
}

TEST_CASE("a world of one rank refuses a backend that its device has not") {
  const Launcher launcher = GENERATE(Launcher::none, Launcher::environment);
  CHECK_THROWS_WITH(run_rank(started_by(launcher), {.backend = "nccl", .device = {}}, [](World&) {}),
                    Contains("comm.backend is nccl, but the device is cpu"));
  CHECK_THROWS_WITH(run_rank(started_by(launcher), {.backend = "gloo", .device = {}}, [](World&) {}),
                    Contains("comm.backend is 'gloo'"));
}

TEST_CASE("ranks of which some have a GPU and others none refuse together") {
  const HeldPort port;
  std::vector<std::string> errors(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      const Launch launch{.launcher = Launcher::environment,
                          .rank = r,
                          .world_size = 3,
                          .source = "torchrun (RANK)",
                          .master = {"127.0.0.1", port.number()}};
      const Device device{r == 2 ? DeviceType::cpu : DeviceType::cuda, 0};
      try {
        run_rank(launch, {.init_timeout_seconds = 60, .backend = "tcp", .device = device}, [](World&) {});
      } catch (const ConfigError& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::StartsWith("[world] rank 0 trains on a GPU of ") &&
                          Contains(", but rank 2 on the CPU of ") &&
                          Catch::EndsWith(": all ranks need GPUs that can be used, or training.device cpu"));
  }
}
