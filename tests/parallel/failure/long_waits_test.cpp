#include "parallel/failure/long_waits.h"

#include <memory>
#include <string>

#include "parallel/comm/bootstrap.h"
#include "parallel/failure/ledger.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using Catch::Contains;
using State = ProgressRecord::State;

namespace {

// Of three ranks that all make the call.
ProgressRecord in_check(int rank, State state, int64_t call) {
  return {.rank = rank,
          .state = state,
          .step = 7,
          .call = {.collective = Collective::barrier,
                   .axis = "world",
                   .label = "data check",
                   .ranks = {{.first = 0, .count = 3}},
                   .sequence = call,
                   .place = call},
          .collectives = {{0, call}}};
}

std::vector<ProgressRecord> without_rank_1(int64_t call) {
  return {in_check(0, State::inside, call), in_check(1, State::done, call - 1),
          in_check(2, State::inside, call)};
}

constexpr const char* kWho =
    "behind: rank 1 is after barrier 'data check' (axis world, call 8, step 7); waiting: ranks 0, 2 are in "
    "barrier 'data check' (axis world, call 9, step 7)";

}  // namespace

TEST_CASE("a long wait is told after a minute, then each time that it is twice as long") {
  LongWaits waits(60);
  const LongWaits::Clock::time_point begin;
  const auto told = [&](int64_t call, int second) {
    return waits.look(without_rank_1(call), begin + std::chrono::seconds(second));
  };
  CHECK(told(9, 0).empty());
  CHECK(told(9, 59).empty());
  CHECK(told(9, 61) == std::string("ranks have waited for others for 61 s; ") + kWho);
  CHECK(told(9, 119).empty());
  CHECK_THAT(told(9, 121), Contains("for 121 s; "));
  CHECK(told(9, 239).empty());
  CHECK_THAT(told(9, 500), Contains("for 500 s; "));
  CHECK(told(9, 959).empty());
  CHECK_THAT(told(9, 960), Contains("for 960 s; "));
  // The next call is another wait.
  CHECK(told(10, 961).empty());
  CHECK(told(10, 1020).empty());
  CHECK_THAT(told(10, 1021), Contains("for 60 s; ") && Contains("call 10, step 7"));
}

TEST_CASE("ranks in a call to which all have come wait for no other, however long it takes") {
  LongWaits waits(60);
  const std::vector<ProgressRecord> records{in_check(0, State::inside, 9), in_check(1, State::inside, 9),
                                            in_check(2, State::inside, 9)};
  for (int second : {0, 100, 1000})
    CHECK(waits.look(records, LongWaits::Clock::time_point{} + std::chrono::seconds(second)).empty());
}

TEST_CASE("rank 0's log says for whom ranks wait") {
  const CapturedOutput captured;
  const std::string who =
      "; behind: rank 1 is before its first call; waiting: ranks 0, 2 are in barrier 'data "
      "check' (axis world, call 1, step 0). The time limit is 300 s";
  const auto is_told = [&] { return captured.text().find(who) != std::string::npos; };
  test::run_thread_ranks({.ranks = 3, .timeout_seconds = 300}, [&](Communicator& world) {
    auto state = std::make_shared<RankState>(world.rank(), world.size());
    CommunicatorBootstrap bootstrap(world);
    const Ledger ledger(state, bootstrap, {.long_wait_seconds = 0.3});
    if (world.rank() != 1) state->enter(in_check(world.rank(), State::inside, 1).call);
    test::wait_until(100, is_told);
    Stream stream = Stream::cpu();
    world.barrier(stream, "test");
  });
  CHECK(is_told());
  CHECK_THAT(captured.text(), Contains("INFO - ranks have waited for others for "));
}
