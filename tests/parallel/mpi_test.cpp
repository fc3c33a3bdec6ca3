#include "parallel/mpi/mpi_communicator.h"

#include <cstdio>
#include <cstdlib>

#include "tests/parallel/communicator_conformance.h"
#include "tests/support/catch.h"

using namespace ottava;

namespace {

// One world for all cases: MPI starts once per process. Small pieces, so that long blocks are cut.
Communicator& world() {
  static std::unique_ptr<Communicator> instance =
      mpi::make_world({.timeout_seconds = 60, .largest_message_bytes = 100'000});
  return *instance;
}

}  // namespace

TEST_CASE("MPI communicator conforms") {
  for (auto* cases : {&conformance::contract_cases(), &conformance::data_cases()}) {
    for (const auto& item : *cases) {
      world().stats().reset();
      // A rank that fails a case must not leave the others waiting in it.
      try {
        item.run(world());
        SUCCEED(item.name);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s: %s\n", world().rank(), item.name, error.what());
        std::_Exit(1);
      }
    }
  }
}

TEST_CASE("MPI is started once") {
  world();
  CHECK_THROWS_WITH(mpi::make_world({}), Catch::Contains("cannot be started twice"));
}
