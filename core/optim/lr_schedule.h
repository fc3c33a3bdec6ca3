#pragma once

#include <cstdint>

#include "core/optim/optimizer_config.h"

namespace ottava {

/// What the learning rate follows from.
struct LrScheduleOptions {
  double lr = 0;      ///< optimizer.lr
  int64_t steps = 0;  ///< training.steps, the horizon unless schedule.total_steps is given
  LrSchedulerConfig schedule;
};

/// The learning rate of 0-based step k: linear warm-up, stable, decay (the schedule of TorchTitan). With
///     T = total_steps or steps;  w = min(warmup_steps, T)
///     D = round(T * decay_ratio), or T - w without a ratio; T - w if w + D > T
///     S = T + 1 - w - D          one virtual step, so that the last real step is not 0
///     k < w: f = (k+1)/w;  k < w+S: f = 1;  else p = (k+1-(w+S))/D, f = 1-p | 1-sqrt(p) | (1+cos(pi p))/2
///     lr * f in the warm-up and stable phases, lr * (m + (1-m) f) in the decay, m = min_lr_factor
/// Past the horizon p stays 1. If D = 0, nothing decays and f stays 1. round() is to nearest, ties to even,
/// as in Python. Throws ConfigError for T < 1 or k < 0.
double learning_rate(const LrScheduleOptions& options, int64_t k);

/// D of the formula above, for T >= 1.
int64_t decay_steps(const LrScheduleOptions& options);

}  // namespace ottava
