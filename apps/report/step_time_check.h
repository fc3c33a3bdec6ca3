#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/decide/decisions.h"

namespace ottava {

/// Compares the step time that quantize.linear.float8.auto predicted (kFloat8StepDecision) with the first 20
/// steps of a run, of which the first three set things up and do not count.
class StepTimeCheck {
 public:
  explicit StepTimeCheck(const Decisions& decisions);
  /// After each step of the run. After the 20th a line for the log, with the median of those that count;
  /// else empty, and always where nothing was predicted.
  std::string add(double step_seconds);

 private:
  double predicted_milliseconds_ = 0;
  std::string reason_;
  std::vector<double> seconds_;
};

}  // namespace ottava
