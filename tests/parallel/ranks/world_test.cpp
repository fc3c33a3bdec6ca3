#include "parallel/ranks/world.h"

#include "core/error.h"
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
