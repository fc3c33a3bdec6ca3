#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/comm/solo_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("thread communicator conforms") {
  int ranks = GENERATE(1, 2, 3, 4, 8);
  for (auto* cases : {&conformance::contract_cases(), &conformance::data_cases()}) {
    for (const auto& item : *cases) {
      INFO(item.name << " on " << ranks << " ranks");
      CHECK_NOTHROW(run_thread_ranks({.ranks = ranks, .timeout_seconds = 60}, item.run));
    }
  }
}

TEST_CASE("dry_run communicator conforms to the contract") {
  int ranks = GENERATE(1, 2, 3, 512);
  for (int rank : {0, ranks / 2, ranks - 1}) {
    for (const auto& item : conformance::contract_cases()) {
      INFO(item.name << " on rank " << rank << " of " << ranks);
      auto world = make_dry_run_world(rank, ranks);
      CHECK_NOTHROW(item.run(*world));
    }
  }
  CHECK_THROWS_WITH(make_dry_run_world(2, 2), Catch::Contains("rank 2 of 2 ranks does not exist"));
}

TEST_CASE("solo communicator conforms") {
  for (auto* cases : {&conformance::contract_cases(), &conformance::data_cases()}) {
    for (const auto& item : *cases) {
      INFO(item.name);
      SoloCommunicator world;
      CHECK_NOTHROW(item.run(world));
    }
  }
}
