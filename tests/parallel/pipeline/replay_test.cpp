#include "parallel/pipeline/replay.h"

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;
using Kind = ReplayStep::Kind;

namespace {

ReplayStep compute(double seconds) { return {.kind = Kind::compute, .seconds = seconds}; }
ReplayStep issue(double seconds, int64_t event, int lane = 0) {
  return {.kind = Kind::issue, .seconds = seconds, .lane = lane, .event = event};
}
ReplayStep wait(int64_t event) { return {.kind = Kind::wait, .event = event}; }

double seconds_of(const ReplayProgram& program, double slowdown = 1) {
  return replay({&program, 1}, slowdown).seconds;
}

}  // namespace

TEST_CASE("a transfer hides behind compute until it is waited for") {
  CHECK(seconds_of({}) == 0);
  CHECK(seconds_of({issue(3, 0), compute(5), wait(0)}) == 5);
  CHECK(seconds_of({issue(7, 0), compute(5), wait(0)}) == 7);
  CHECK(seconds_of({issue(3, 0), wait(0), compute(5)}) == 8);           // what is needed at once is exposed
  CHECK(seconds_of({compute(5), issue(3, 0)}) == 5);                    // no wait
  CHECK(seconds_of({compute(2), issue(3, 0), wait(0), wait(0)}) == 5);  // twice is once
}

TEST_CASE("transfers of a stream are carried out in order, those of two beside each other") {
  CHECK(seconds_of({issue(3, 0), issue(4, 1), wait(1)}) == 7);
  CHECK(seconds_of({issue(3, 0), issue(4, 1), compute(1), wait(0), compute(2), wait(1)}) == 7);
  CHECK(seconds_of({issue(3, 0, 0), issue(4, 1, 1), wait(1), wait(0)}) == 4);
  const ReplayProgram program{compute(1), issue(3, 0), compute(1), issue(2, 1), wait(1), compute(1)};
  const Replay out = replay({&program, 1});
  CHECK(out.programs[0][3].begin == 4);
  CHECK(out.programs[0][3].end == 6);
  CHECK(out.programs[0][4].begin == 2);  // compute stands still from here
  CHECK(out.programs[0][4].end == 6);
  CHECK(out.seconds == 7);
}

TEST_CASE("compute beside traffic is slower, and only as long as there is some") {
  CHECK(seconds_of({issue(10, 0), compute(4)}, 1.5) == 6);
  CHECK(seconds_of({issue(3, 0), compute(4)}, 1.5) == 5);  // 2 in 3, 2 in 2
  CHECK(seconds_of({issue(3, 0), wait(0), compute(4)}, 1.5) == 7);
}

// Forward passes of a pipeline: a stage works on a micro-batch when the one before has sent it.
TEST_CASE("stages of a pipeline take micro-batches + stages - 1 turns") {
  constexpr int kStages = 4, kMicroBatches = 6;
  for (const double send : {0.0, 0.25}) {
    std::vector<ReplayProgram> stages(kStages);
    for (int stage = kStages - 1; stage >= 0; --stage) {
      for (int m = 0; m < kMicroBatches; ++m) {
        if (stage > 0) stages[static_cast<size_t>(stage)].push_back(wait((stage - 1) * kMicroBatches + m));
        stages[static_cast<size_t>(stage)].push_back(compute(1));
        if (stage + 1 < kStages)
          stages[static_cast<size_t>(stage)].push_back(issue(send, stage * kMicroBatches + m));
      }
    }
    CHECK(replay(stages).seconds == kMicroBatches + (kStages - 1) * (1 + send));
  }
}

TEST_CASE("ranks that wait for each other are told so") {
  const ReplayProgram first{wait(1), issue(1, 0)}, second{wait(0), issue(1, 1)};
  const std::vector<ReplayProgram> both{first, second};
  CHECK_THROWS_WITH(replay(both), "[replay] rank 0 is stuck at step 0 of 2: no rank reaches event 1");
  const ReplayProgram alone{compute(1), wait(3)};
  CHECK_THROWS_AS(replay({&alone, 1}), Error);
}

namespace {

ReplayStep meet(double seconds, int64_t event, int lane = 0) {
  return {.kind = Kind::meet, .seconds = seconds, .lane = lane, .event = event};
}

}  // namespace

TEST_CASE("a transfer between two ranks begins when both have come to it") {
  const std::vector<ReplayProgram> late{{compute(1), meet(2, 0)},
                                        {meet(2, 0), compute(4), wait(0), compute(1)}};
  CHECK(replay(late).seconds == 5);
  const std::vector<ReplayProgram> exposed{{compute(3), meet(2, 0)},
                                           {meet(2, 0), compute(4), wait(0), compute(1)}};
  CHECK(replay(exposed).seconds == 6);
  CHECK(replay(exposed).programs[1][0].begin == 3);
}

TEST_CASE("what waits in a stream holds up what comes behind it") {
  const std::vector<ReplayProgram> one_lane{{compute(5), meet(1, 0)}, {meet(1, 0), issue(1, 1), wait(1)}};
  CHECK(replay(one_lane).seconds == 7);
  const std::vector<ReplayProgram> two_lanes{{compute(5), meet(1, 0)}, {meet(1, 0), issue(1, 1, 1), wait(1)}};
  CHECK(replay(two_lanes).seconds == 5);
  // Each has its send in front of its receive.
  const std::vector<ReplayProgram> crossed{{meet(1, 0), meet(1, 1), wait(1)},
                                           {meet(1, 1), meet(1, 0), wait(0)}};
  CHECK_THROWS_WITH(replay(crossed), "[replay] rank 0 is stuck at step 2 of 3: no rank reaches event 1");
  const std::vector<ReplayProgram> unmet{{meet(1, 0)}, {compute(1)}};
  CHECK_THROWS_WITH(replay(unmet), "[replay] rank 0 is stuck at step 0 of 1: no other rank comes to event 0");
}
