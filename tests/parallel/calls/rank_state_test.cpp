#include "parallel/calls/rank_state.h"

#include <set>

#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using State = ProgressRecord::State;

TEST_CASE("of several calls under way the one that began first is shown, then the last that ended") {
  RankState state(0, 2);
  const auto shown = [&] { return describe(state.progress()); };
  const auto enter = [&](const char* label, uint32_t group, RankState::Clock::time_point since) {
    return state.enter({.axis = "tp", .label = label, .group = group}, since);
  };
  const auto now = RankState::Clock::now();
  const int64_t first = enter("first", 5, now), second = enter("second", 6, now + std::chrono::seconds(1)),
                oldest = enter("oldest", 6, now - std::chrono::seconds(1));
  CHECK(shown() == "in barrier 'oldest' (axis tp, call 3, step 0)");
  state.withdraw(oldest);
  CHECK(shown() == "in barrier 'first' (axis tp, call 1, step 0)");
  state.leave(second);
  CHECK(shown() == "in barrier 'first' (axis tp, call 1, step 0)");
  CHECK(state.progress().collectives == std::map<uint32_t, int64_t>{{5, 1}, {6, 1}});
  state.leave(first);
  CHECK(shown() == "after barrier 'first' (axis tp, call 1, step 0)");
  CHECK(state.progress().call.place == 1);
  state.leave(enter("next", 5, now));
  CHECK(state.progress().call.place == 2);
  CHECK(state.enter({.collectives = 0}) == 5);
  CHECK(state.progress().collectives == std::map<uint32_t, int64_t>{{5, 2}, {6, 1}});
}

TEST_CASE("communicators are told apart by axis, ranks and order, alike on all their ranks") {
  RankState a(0, 4), b(1, 4);
  const auto number = [](RankState& state, const char* axis, const std::vector<int>& ranks) {
    return state.add_group(axis, ranks);
  };
  const uint32_t tp = number(a, "tp", {0, 1}), again = number(a, "tp", {0, 1}), cp = number(a, "cp", {0, 1}),
                 more = number(a, "tp", {0, 1, 2});
  CHECK(std::set<uint32_t>{tp, again, cp, more}.size() == 4);
  number(b, "cp", {1, 3});
  CHECK(number(b, "tp", {0, 1}) == tp);
  CHECK(number(b, "tp", {0, 1}) == again);
}

TEST_CASE("the first failure counts and reaches every hook") {
  RankState state(3, 8);
  std::vector<std::string> heard;
  state.on_failure([&](const std::string& reason) { heard.push_back(reason); });
  state.set_step(7);
  state.leave(state.enter({.collective = Collective::all_reduce, .axis = "tp", .label = "x", .calls = 2}));
  CHECK(state.progress().call.sequence == 2);
  CHECK_THAT(state.timeout_message(),
             Contains("rank 3: all_reduce 'x' (axis tp, step 7) made no progress for 300 s: which rank is "
                      "missing is not known"));
  state.set_work("micro-batch 3 of stage 1");
  const int64_t y =
      state.enter({.collective = Collective::all_gather, .axis = "tp", .label = "y", .work = state.work()});
  CHECK(describe(state.progress()) ==
        "in all_gather 'y' (axis tp, call 3, step 7, micro-batch 3 of stage 1)");
  state.set_explanation([] { return std::string("it was rank 5"); });
  CHECK_THAT(state.timeout_message(), Contains("it was rank 5"));
  state.fail("first");
  state.fail("second");
  CHECK(state.failure() == "first");
  CHECK(heard == std::vector<std::string>{"first"});
  state.leave(y);
  CHECK(state.progress().state == State::failed);
}
