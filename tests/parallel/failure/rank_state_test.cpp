#include "parallel/failure/rank_state.h"

#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using State = ProgressRecord::State;

namespace {

ProgressRecord at(int rank, State state, int64_t sequence, std::string label = "layers.1") {
  return {.rank = rank,
          .state = state,
          .was_inside = state == State::inside,
          .collective = Collective::all_gather,
          .step = 7,
          .sequence = sequence,
          .elements = 64,
          .axis = "dp_shard",
          .label = std::move(label)};
}

}  // namespace

TEST_CASE("blame names the rank that is behind") {
  std::string text = blame({at(0, State::inside, 9), at(1, State::done, 8), at(2, State::inside, 9)});
  CHECK(text ==
        "behind: rank 1 is after all_gather 'layers.1' (axis dp_shard, call 8, step 7); waiting: ranks 0, 2 "
        "are "
        "in all_gather 'layers.1' (axis dp_shard, call 9, step 7)");
  CHECK_THAT(blame({at(0, State::inside, 1), ProgressRecord{.rank = 1}}),
             Contains("behind: rank 1 is before its first call"));
}

TEST_CASE("blame names ranks that are gone before ranks that are behind") {
  ProgressRecord gone = at(2, State::closed, 9);
  gone.was_inside = true;
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::done, 8), gone}),
             Catch::StartsWith(
                 "rank 2 is gone, last seen in all_gather 'layers.1' (axis dp_shard, call 9, step 7); "));
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::silent, 9)}),
             Catch::StartsWith("rank 1 is not answering, last seen after"));
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::failed, 9)}),
             Catch::StartsWith("rank 1 is stopped by an error"));
  CHECK_THAT(blame({at(0, State::inside, 9), ProgressRecord{.rank = 1, .state = State::closed}}),
             Contains("rank 1 is gone, last seen before its first call"));
}

TEST_CASE("blame tells disagreement from a broken connection") {
  CHECK_THAT(blame({at(0, State::inside, 9, "a"), at(1, State::inside, 9, "b")}),
             Contains("the ranks disagree about the call"));
  CHECK_THAT(blame({at(0, State::inside, 9), at(1, State::inside, 9)}),
             Contains("no rank is behind, so the connection is at fault"));
  CHECK(blame({}) == "no rank has reported");
}

TEST_CASE("blame shortens long lists") {
  std::vector<ProgressRecord> records = {at(0, State::done, 8)};
  for (int r = 1; r < 512; ++r) records.push_back(at(r, State::inside, 9));
  CHECK_THAT(blame(records), Contains("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 503 more are in"));
}

TEST_CASE("the first failure counts and reaches every hook") {
  RankState state(3, 8);
  std::vector<std::string> heard;
  state.on_failure([&](const std::string& reason) { heard.push_back(reason); });
  state.set_step(7);
  state.enter(Collective::all_reduce, "tp", "x", 2);
  CHECK(state.progress().sequence == 2);
  CHECK_THAT(state.timeout_message(),
             Contains("rank 3: all_reduce 'x' (axis tp, step 7) made no progress for 300 s: which rank is "
                      "missing is not known"));
  state.set_work("micro-batch 3 of stage 1");
  state.enter(Collective::all_gather, "tp", "y", 1, 0, state.work());
  CHECK(describe(state.progress()) ==
        "in all_gather 'y' (axis tp, call 3, step 7, micro-batch 3 of stage 1)");
  state.set_explanation([] { return std::string("it was rank 5"); });
  CHECK_THAT(state.timeout_message(), Contains("it was rank 5"));
  state.fail("first");
  state.fail("second");
  CHECK(state.failure() == "first");
  CHECK(heard == std::vector<std::string>{"first"});
  state.leave();
  CHECK(state.progress().state == State::failed);
}
