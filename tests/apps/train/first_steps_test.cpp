#include "apps/train/first_steps.h"

#include "apps/decide/float8_speedup.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using Catch::EndsWith;

namespace {

FirstSteps planned_second() {
  StepTime planned;
  planned.seconds = 1;
  planned.error = 0.2;
  planned.labels["attention.core"].seconds = 0.3;
  planned.labels["feed_forward.w2"].seconds = 0.5;
  return {planned, Decisions{}};
}

FirstSteps predicted_by_auto() {
  return {std::nullopt, {.made_for = "", .entries = {{std::string(kFloat8StepDecision), "10.000", "why"}}}};
}

/// What is said after 20 steps of so many seconds, the first three ten times as long, and never again.
std::vector<FirstSteps::Line> said(FirstSteps& steps, double seconds) {
  std::vector<FirstSteps::Line> all;
  for (int i = 0; i < 40; ++i) {
    const auto lines = steps.add(i < 3 || i >= 20 ? 10 * seconds : seconds);
    if (i != 19) CHECK(lines.empty());
    all.insert(all.end(), lines.begin(), lines.end());
  }
  return all;
}
std::string only(FirstSteps steps, double seconds) {
  const auto lines = said(steps, seconds);
  REQUIRE(lines.size() == 1);
  return lines.front().text;
}

}  // namespace

TEST_CASE("the first steps are held against the plan once, without those that settle") {
  FirstSteps steps = planned_second();
  CHECK(steps.short_text().empty());
  const auto lines = said(steps, 1.1);
  REQUIRE(lines.size() == 1);
  CHECK(lines.front().text == "a step takes 1.1 s, planned 1 s (0.8 to 1.2): as planned");
  CHECK_FALSE(lines.front().is_slow);
  CHECK(steps.short_text() == "planned 1 s");
  CHECK_FALSE(steps.wants_profile());
  CHECK_THAT(only(planned_second(), 0.5), EndsWith("faster than planned"));
  FirstSteps median = planned_second();
  for (int i = 0; i < 19; ++i) CHECK(median.add(i < 11 ? 1.1 : 9).empty());
  CHECK_THAT(median.add(1).front().text, Contains("a step takes 1.1 s"));
}

TEST_CASE("a step that is slower than the plan's error explains names its operation") {
  FirstSteps steps = planned_second();
  const auto lines = said(steps, 2);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines.front().text, EndsWith("longer than the error of the plan explains"));
  CHECK(lines.front().is_slow);
  CHECK(steps.wants_profile());
  CHECK_FALSE(steps.wants_profile());  // one step is enough
  CHECK_THAT(steps.blame({{"attention.core", 0.35}, {"feed_forward.w2", 1.4}}),
             Contains("feed_forward.w2 takes 1.4 s of a step, planned 0.5 s"));
  CHECK_THAT(steps.blame({{"attention.core", 0.1}}), Contains("no operation is slower than planned"));
}

TEST_CASE("what auto predicted is compared with the same steps, and the log says how near it was") {
  CHECK(only(predicted_by_auto(), 0.0105) ==
        "quantize.linear.float8.auto predicted 10.000 ms a step (why); steps 4 to 20 of this run took 10.500 "
        "ms, 1.05 times that");
  CHECK_THAT(only(predicted_by_auto(), 0.013),
             Contains("took 13.000 ms, 1.30 times that: the rest is launches and traffic"));
  CHECK_THAT(only(predicted_by_auto(), 0.008),
             EndsWith("the measurement was disturbed; --redecide measures again"));
  CHECK(predicted_by_auto().short_text().empty());
  FirstSteps nothing;
  CHECK(said(nothing, 1).empty());
}
