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

/// What is said of a run of `count` steps of so many seconds, the first three ten times as long; it may be
/// said after step `moment` only.
std::vector<FirstSteps::Line> said(FirstSteps& steps, double seconds, int moment, int count = 40) {
  std::vector<FirstSteps::Line> all;
  for (int i = 1; i <= count; ++i) {
    const auto lines = steps.add(i <= 3 || i > moment ? 10 * seconds : seconds, i == count);
    if (i != moment) CHECK(lines.empty());
    all.insert(all.end(), lines.begin(), lines.end());
  }
  return all;
}
std::string only(FirstSteps steps, double seconds, int moment, int count = 40) {
  const auto lines = said(steps, seconds, moment, count);
  REQUIRE(lines.size() == 1);
  return lines.front().text;
}

}  // namespace

TEST_CASE("the first seven steps are held against the plan once, without those that settle") {
  FirstSteps steps = planned_second();
  CHECK(steps.short_text().empty());
  const auto lines = said(steps, 1.1, 7);
  REQUIRE(lines.size() == 1);
  CHECK(lines.front().text == "a step takes 1.1 s, planned 1 s (0.8 to 1.2): as planned");
  CHECK_FALSE(lines.front().is_slow);
  CHECK(steps.short_text() == "planned 1 s");
  CHECK_FALSE(steps.wants_profile());
  CHECK_THAT(only(planned_second(), 0.5, 7), EndsWith("faster than planned"));
  FirstSteps median = planned_second();
  for (const double seconds : {9., 9., 9., 0.1, 9., 1.1}) CHECK(median.add(seconds, false).empty());
  CHECK_THAT(median.add(1, false).front().text, Contains("a step takes 1.1 s"));
}

TEST_CASE("a run that ends sooner compares the steps that it had, and one that only settles says nothing") {
  CHECK_THAT(only(planned_second(), 1.1, 7, 7), EndsWith("as planned"));
  CHECK_THAT(only(planned_second(), 1.1, 6, 6), EndsWith("as planned"));
  CHECK_THAT(only(planned_second(), 1.1, 4, 4), Contains("a step takes 1.1 s"));
  CHECK_THAT(only(predicted_by_auto(), 0.01, 20, 20), Contains("steps 4 to 20 of this run took 10.000 ms"));
  CHECK_THAT(only(predicted_by_auto(), 0.01, 12, 12), Contains("steps 4 to 12 of this run took 10.000 ms"));
  for (int count = 1; count <= 3; ++count) {
    FirstSteps planned = planned_second(), predicted = predicted_by_auto();
    CHECK(said(planned, 1, 0, count).empty());
    CHECK(said(predicted, 1, 0, count).empty());
  }
}

TEST_CASE("a step that is slower than the plan's error explains names its operation") {
  FirstSteps steps = planned_second();
  const auto lines = said(steps, 2, 7);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines.front().text, EndsWith("longer than the error of the plan explains"));
  CHECK(lines.front().is_slow);
  CHECK(steps.wants_profile());
  CHECK_FALSE(steps.wants_profile());  // one step is enough
  const std::map<std::string, double, std::less<>> slow{{"attention.core", 0.35}, {"feed_forward.w2", 1.4}};
  const std::string behind =
      "feed_forward.w2 takes 1.4 s of a step, planned 0.5 s: the largest part of the difference";
  for (const double of_step : {1.9, 2.8}) CHECK(steps.blame(slow, of_step) == behind);
  CHECK(steps.blame(slow, 3) ==
        behind +
            " within operations; but 1.05 s of this step's 3 s are spent between them, "
            "where ranks wait for each other and other programs take the processor");
  CHECK_THAT(steps.blame({{"attention.core", 0.1}}, 2), Contains("no operation is slower than planned"));
}

TEST_CASE("what auto predicted is compared with the first 20 steps once, and the log says how near it was") {
  CHECK(only(predicted_by_auto(), 0.0105, 20) ==
        "quantize.linear.float8.auto predicted 10.000 ms a step (why); steps 4 to 20 of this run took 10.500 "
        "ms, 1.05 times that");
  CHECK_THAT(only(predicted_by_auto(), 0.013, 20),
             Contains("took 13.000 ms, 1.30 times that: the rest is launches and communication"));
  CHECK_THAT(only(predicted_by_auto(), 0.008, 20),
             EndsWith("the measurement was disturbed; --redecide measures again"));
  CHECK(predicted_by_auto().short_text().empty());
  FirstSteps nothing;
  CHECK(said(nothing, 1, 0).empty());
}
