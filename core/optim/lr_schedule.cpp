#include "core/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace ottava {
namespace {

double decay(LrSchedulerConfig::Decay shape, double p) {
  switch (shape) {
    case LrSchedulerConfig::Decay::linear:
      return 1 - p;
    case LrSchedulerConfig::Decay::sqrt:
      return 1 - std::sqrt(p);
    case LrSchedulerConfig::Decay::cosine:
      return (1 + std::cos(std::numbers::pi * p)) / 2;
  }
  fail("lr_schedule", "decay {} has no formula in decay()", static_cast<int>(shape));
}

}  // namespace

int64_t decay_steps(const LrScheduleOptions& options) {
  const LrSchedulerConfig& s = options.schedule;
  const int64_t total = s.total_steps.value_or(options.steps), rest = total - std::min(s.warmup_steps, total);
  if (!s.decay_ratio) return rest;
  // nearbyint rounds ties to even, as Python's round() does: the schedules must agree to the step.
  return std::min(rest, static_cast<int64_t>(std::nearbyint(total * *s.decay_ratio)));
}

double learning_rate(const LrScheduleOptions& options, int64_t k) {
  const LrSchedulerConfig& s = options.schedule;
  const int64_t total = s.total_steps.value_or(options.steps);
  if (total < 1) fail<ConfigError>("lr_schedule", "the schedule has {} steps, expected at least 1", total);
  if (k < 0) fail<ConfigError>("lr_schedule", "step is {}, expected 0 or more", k);
  const int64_t warmup = std::min(s.warmup_steps, total);
  const int64_t decaying = decay_steps(options), stable_until = total + 1 - decaying;
  if (k < warmup) return options.lr * (k + 1) / warmup;
  if (k < stable_until || decaying == 0) return options.lr;
  const double p = std::min(1.0, static_cast<double>(k + 1 - stable_until) / decaying);
  return options.lr * (s.min_lr_factor + (1 - s.min_lr_factor) * decay(s.decay_type, p));
}

}  // namespace ottava
