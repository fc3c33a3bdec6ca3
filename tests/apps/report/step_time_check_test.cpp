#include "apps/report/step_time_check.h"

#include "apps/decide/float8_speedup.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using Catch::EndsWith;

namespace {

/// What is said after 20 steps of so many seconds, the first three ten times as long.
std::string said(double seconds) {
  StepTimeCheck check({.made_for = "", .entries = {{std::string(kFloat8StepDecision), "10.000", "why"}}});
  std::string text;
  for (int i = 0; i < 40; ++i) {
    const std::string line = check.add(i < 3 ? 10 * seconds : seconds);
    CHECK(line.empty() == (i != 19));
    text += line;
  }
  return text;
}

}  // namespace

TEST_CASE("what auto predicted is compared with the first 20 steps once, and the log says how near it was") {
  CHECK(said(0.0105) ==
        "quantize.linear.float8.auto predicted 10.000 ms a step (why); steps 4 to 20 of this run took 10.500 "
        "ms, 1.05 times that");
  CHECK_THAT(said(0.013),
             Contains("took 13.000 ms, 1.30 times that: the rest is launches, data and traffic"));
  CHECK_THAT(said(0.008), EndsWith("the measurement was disturbed; --redecide measures again"));
  StepTimeCheck nothing(Decisions{});
  for (int i = 0; i < 40; ++i) CHECK(nothing.add(1).empty());
}
