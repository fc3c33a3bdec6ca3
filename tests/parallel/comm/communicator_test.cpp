#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "parallel/comm/solo_communicator.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;

TEST_CASE("host communicator conforms") {
  // Small pieces, so that long blocks are cut and reductions take many segments.
  const test::ThreadRanks how{.ranks = GENERATE(1, 2, 3, 4, 8),
                              .timeout_seconds = 60,
                              .largest_message_bytes = 100'000,
                              .workspace_bytes = 24'000};
  for (auto* cases : {&conformance::contract_cases(), &conformance::data_cases()}) {
    for (const auto& item : *cases) {
      INFO(item.name << " on " << how.ranks << " ranks");
      CHECK_NOTHROW(test::run_thread_ranks(how, item.run));
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
