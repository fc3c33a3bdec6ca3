#include "core/optim/lr_schedule.h"

#include <vector>

#include "tests/support/catch.h"

using namespace ottava;

namespace {

using Decay = LrSchedulerConfig::Decay;

std::vector<double> rates(const LrScheduleOptions& options, int64_t steps) {
  std::vector<double> values;
  for (int64_t k = 0; k < steps; ++k) values.push_back(learning_rate(options, k));
  return values;
}

void check_rates(const LrScheduleOptions& options, const std::vector<double>& want) {
  auto got = rates(options, static_cast<int64_t>(want.size()));
  for (size_t k = 0; k < want.size(); ++k) {
    INFO("step " << k);
    CHECK(got[k] == Approx(want[k]).epsilon(1e-9).margin(1e-15));
  }
}

}  // namespace

TEST_CASE("warm-up, one stable step, then a linear decay that does not reach 0 in the last real step") {
  check_rates({.lr = 2, .steps = 10, .schedule = {.warmup_steps = 2}},
              {1, 2, 2, 1.75, 1.5, 1.25, 1, 0.75, 0.5, 0.25, 0, 0});
}

TEST_CASE("sqrt and cosine decays") {
  // p = 1/4, 2/4, 3/4, 1 from step 2 on (w 1, D 4, S 1).
  check_rates({.lr = 1, .steps = 5, .schedule = {.warmup_steps = 1, .decay_type = Decay::sqrt}},
              {1, 1, 0.5, 0.2928932188134524, 0.1339745962155614, 0});
  check_rates({.lr = 1, .steps = 5, .schedule = {.warmup_steps = 1, .decay_type = Decay::cosine}},
              {1, 1, 0.8535533905932738, 0.5, 0.1464466094067262, 0});
}

TEST_CASE("decay_ratio leaves a stable phase, and the floor lifts the decay alone") {
  // T 10, w 2, D 2, S 7: steps 2 to 8 are stable, step 9 has p = 1/2.
  check_rates(
      {.lr = 1, .steps = 10, .schedule = {.warmup_steps = 2, .decay_ratio = 0.2, .min_lr_factor = 0.1}},
      {0.5, 1, 1, 1, 1, 1, 1, 1, 1, 0.55, 0.1, 0.1});
  check_rates({.lr = 1, .steps = 4, .schedule = {.warmup_steps = 1, .decay_ratio = 0.0}}, {1, 1, 1, 1});
}

TEST_CASE("a decay longer than what warm-up leaves is shortened; ties round to even") {
  // w 5, D 9 -> 5, S 1: step 5 is stable, then p = 1/5, 2/5, ...
  check_rates({.lr = 1, .steps = 10, .schedule = {.warmup_steps = 5, .decay_ratio = 0.9}},
              {0.2, 0.4, 0.6, 0.8, 1, 1, 0.8, 0.6, 0.4, 0.2});
  // 5 * 0.5 = 2.5 -> 2: w 0, D 2, S 4: steps 0 to 3 are stable, step 4 has p = 1/2.
  check_rates({.lr = 1, .steps = 5, .schedule = {.warmup_steps = 0, .decay_ratio = 0.5}}, {1, 1, 1, 1, 0.5});
  // 7 * 0.5 = 3.5 -> 4: steps 0 to 3 are stable, then p = 1/4, 2/4, 3/4.
  check_rates({.lr = 1, .steps = 7, .schedule = {.warmup_steps = 0, .decay_ratio = 0.5}},
              {1, 1, 1, 1, 0.75, 0.5, 0.25});
}

TEST_CASE("a warm-up longer than the run rises to its last step") {
  check_rates({.lr = 1, .steps = 4, .schedule = {.warmup_steps = 200}}, {0.25, 0.5, 0.75, 1});
}

TEST_CASE("total_steps replaces the run's length as the horizon") {
  check_rates({.lr = 1, .steps = 3, .schedule = {.warmup_steps = 2, .total_steps = 10}},
              {0.5, 1, 1, 0.875, 0.75});
}

TEST_CASE("where nothing decays, the learning rate stays, past the horizon too") {
  check_rates({.lr = 1,
               .steps = 6,
               .schedule = {.warmup_steps = 1, .total_steps = 3, .decay_ratio = 0.0, .min_lr_factor = 0.1}},
              {1, 1, 1, 1, 1, 1});
  // 3 * 0.1 rounds to no step.
  check_rates({.lr = 1, .steps = 6, .schedule = {.warmup_steps = 0, .total_steps = 3, .decay_ratio = 0.1}},
              {1, 1, 1, 1, 1, 1});
  check_rates({.lr = 1, .steps = 6, .schedule = {.warmup_steps = 4, .total_steps = 4}},
              {0.25, 0.5, 0.75, 1, 1, 1});
}

TEST_CASE("a schedule without steps and a step before the first are refused") {
  CHECK_THROWS_WITH(learning_rate({.lr = 1, .steps = 0}, 0),
                    "[lr_schedule] the schedule has 0 steps, expected at least 1");
  CHECK_THROWS_WITH(learning_rate({.lr = 1, .steps = 5}, -1), "[lr_schedule] step is -1, expected 0 or more");
}

TEST_CASE("a decay without a formula is no cosine") {
  CHECK_THROWS_WITH(
      learning_rate(
          {.lr = 1, .steps = 5, .schedule = {.warmup_steps = 0, .decay_type = static_cast<Decay>(99)}}, 4),
      "[lr_schedule] decay 99 has no formula in decay()");
}
