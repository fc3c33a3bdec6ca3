#include "apps/train/planned_pace.h"

#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;

namespace {

PlannedPace pace_of(double seconds) {
  StepTime planned;
  planned.seconds = seconds;
  planned.error = 0.2;
  planned.labels["attention.core"].seconds = 0.3;
  planned.labels["feed_forward.w2"].seconds = 0.5;
  return PlannedPace(planned);
}

std::string after(PlannedPace& pace, std::initializer_list<double> seconds) {
  std::string last;
  for (double s : seconds) last = pace.add(s);
  return last;
}

}  // namespace

TEST_CASE("the first steps are held against the plan once, without those that settle") {
  PlannedPace pace = pace_of(1);
  CHECK(after(pace, {9, 9, 1.1, 1.0, 1.1, 1.2}).empty());
  CHECK(pace.short_text().empty());
  CHECK(after(pace, {5}) == "a step takes 1.1 s, planned 1 s (0.8 to 1.2): as planned");
  CHECK(pace.short_text() == "planned 1 s");
  CHECK_FALSE(pace.is_slower());
  CHECK_FALSE(pace.wants_profile());
  CHECK(after(pace, {9, 9, 9}).empty());
  PlannedPace fast = pace_of(1);
  CHECK_THAT(after(fast, {1, 1, .5, .5, .5, .5, .5}), Contains("faster than planned"));
  PlannedPace unknown(std::nullopt);
  CHECK(after(unknown, {1, 1, 1, 1, 1, 1, 1, 1}).empty());
  CHECK(unknown.short_text().empty());
}

TEST_CASE("a step that is slower than the plan's error explains names its operation") {
  PlannedPace pace = pace_of(1);
  CHECK_THAT(after(pace, {1, 1, 2, 2, 2, 2, 2}), Contains("longer than the error of the plan explains"));
  CHECK(pace.is_slower());
  CHECK(pace.wants_profile());
  CHECK_FALSE(pace.wants_profile());  // one step is enough
  CHECK_THAT(pace.blame({{"attention.core", 0.35}, {"feed_forward.w2", 1.4}}),
             Contains("feed_forward.w2 takes 1.4 s of a step, planned 0.5 s"));
  CHECK_THAT(pace.blame({{"attention.core", 0.1}}), Contains("no operation is slower than planned"));
}
