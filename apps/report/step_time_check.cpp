#include "apps/report/step_time_check.h"

#include <algorithm>

#include "apps/decide/float8_speedup.h"

namespace ottava {
namespace {

constexpr size_t kSteps = 20;
constexpr std::ptrdiff_t kSettling = 3;
/// What a prediction from operations may be off by before the log says that it is.
constexpr double kClose = 0.1;

}  // namespace

StepTimeCheck::StepTimeCheck(const Decisions& decisions) {
  const Decisions::Entry* entry = decisions.find(kFloat8StepDecision);
  if (!entry) return;
  predicted_milliseconds_ = std::stod(entry->value);
  reason_ = entry->reason;
}

std::string StepTimeCheck::add(double step_seconds) {
  if (predicted_milliseconds_ <= 0 || seconds_.size() >= kSteps) return {};
  seconds_.push_back(step_seconds);
  if (seconds_.size() < kSteps) return {};
  std::sort(seconds_.begin() + kSettling, seconds_.end());
  const double took = 1e3 * seconds_[(kSettling + kSteps) / 2], ratio = took / predicted_milliseconds_;
  std::string text = fmt::format(
      "quantize.linear.float8.auto predicted {:.3f} ms a step ({}); steps {} to {} of this run took {:.3f} "
      "ms, "
      "{:.2f} times that",
      predicted_milliseconds_, reason_, kSettling + 1, kSteps, took, ratio);
  if (ratio > 1 + kClose)
    return text + ": the rest is launches, data and traffic, or something else uses the machine";
  if (ratio < 1 - kClose) return text + ": the measurement was disturbed; --redecide measures again";
  return text;
}

}  // namespace ottava
