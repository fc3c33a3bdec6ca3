#include "core/optim/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ottava {

LossScale LossScale::constant(double scale) {
  if (!(scale > 0) || !std::isfinite(scale)) {
    fail<ConfigError>("loss_scale", "the constant is {}, expected a positive finite number", scale);
  }
  return LossScale({.scale = scale}, false);
}

LossScale LossScale::dynamic() { return LossScale({.scale = kInitial}, true); }

void LossScale::update(bool overflow) {
  if (!is_dynamic_) return;
  if (overflow) {
    state_ = {.scale = std::max(state_.scale / 2, 1.0)};
  } else if (++state_.good_steps == kGrowthInterval) {
    state_ = {.scale = std::min(state_.scale * 2, kLargest)};
  }
}

void LossScale::restore(State state) {
  if (!is_dynamic_) return;
  int exponent = 0;
  const bool power_of_two = std::frexp(state.scale, &exponent) == 0.5;
  if (!power_of_two || state.scale < 1 || state.scale > kLargest || state.good_steps < 0 ||
      state.good_steps >= kGrowthInterval) {
    fail<FileError>("loss_scale",
                    "the checkpoint's state is impossible: scale {} after {} good steps, expected a power of "
                    "two from 1 to "
                    "{} and 0 to {} steps",
                    state.scale, state.good_steps, kLargest, kGrowthInterval - 1);
  }
  state_ = state;
}

}  // namespace ottava
