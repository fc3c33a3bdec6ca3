#include "apps/train/first_steps.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "apps/decide/float8_speedup.h"
#include "apps/predict/sample_step.h"

namespace ottava {
namespace {

constexpr size_t kSettling = 3, kBesidePlan = 7, kBesideAuto = 20;
/// How far auto's prediction, made from operations, may be off before the log says so.
constexpr double kClose = 0.1;

}  // namespace

FirstSteps::FirstSteps(std::optional<StepTime> planned, const Decisions& decisions)
    : planned_(std::move(planned)) {
  if (const Decisions::Entry* entry = decisions.find(kFloat8StepDecision)) auto_ = *entry;
}

// Labels are rank 0's, since they are compared with its profile.
StepTime FirstSteps::planned(const StepPlan& plan, const Experiment& e, Device device,
                             const Machine& machine) {
  StepTime planned = predict_step(plan, machine);
  if (!e.shape.pipeline.is_on()) return planned;
  StepTime all = predict_step(sample_first_of_roles(e.shape, device, e.mesh), machine);
  all.labels = std::move(planned.labels);
  return all;
}

std::vector<FirstSteps::Line> FirstSteps::add(double seconds, bool is_last) {
  std::vector<Line> lines;
  if (steps_.size() >= kBesideAuto) return lines;
  steps_.push_back(seconds);
  const size_t count = steps_.size();
  if (count <= kSettling) return lines;
  const auto has_come = [&](size_t moment) { return count == moment || (is_last && count < moment); };
  const auto middle = steps_.begin() + (kSettling + count) / 2;
  std::nth_element(steps_.begin() + kSettling, middle, steps_.end());
  if (planned_ && has_come(kBesidePlan)) {
    lines.push_back(beside_plan(*middle));
    is_slow_ = lines.back().is_slow;
  }
  if (auto_ && has_come(kBesideAuto)) lines.push_back(beside_auto(*middle));
  return lines;
}

FirstSteps::Line FirstSteps::beside_plan(double seconds) const {
  const bool is_slow = seconds > planned_->high();
  return {fmt::format("a step takes {:.4g} s, planned {:.4g} s ({:.4g} to {:.4g}): {}", seconds,
                      planned_->seconds, planned_->low(), planned_->high(),
                      is_slow                     ? "longer than the error of the plan explains"
                      : seconds < planned_->low() ? "faster than planned"
                                                  : "as planned"),
          is_slow};
}

FirstSteps::Line FirstSteps::beside_auto(double seconds) const {
  const double predicted = std::stod(auto_->value), ratio = 1e3 * seconds / predicted;
  return {fmt::format(
      "quantize.linear.float8.auto predicted {:.3f} ms a step ({}); steps {} to {} of this run took {:.3f} "
      "ms, {:.2f} times that{}",
      predicted, auto_->reason, kSettling + 1, steps_.size(), 1e3 * seconds, ratio,
      ratio > 1 + kClose   ? ": the rest is launches and communication, or other programs use the machine"
      : ratio < 1 - kClose ? ": the measurement was disturbed; --redecide measures again"
                           : "")};
}

bool FirstSteps::wants_profile() { return std::exchange(is_slow_, false); }

std::string FirstSteps::blame(const std::map<std::string, double, std::less<>>& seconds,
                              double step_seconds) const {
  std::string label;
  double most = 0, planned = 0, took = 0, outside = step_seconds - planned_->seconds;
  for (const auto& [name, time] : seconds) {
    const auto part = planned_->labels.find(name);
    const double expected = part == planned_->labels.end() ? 0 : part->second.seconds + part->second.exposed;
    outside -= time - expected;
    if (time - expected <= most) continue;
    most = time - expected, label = name, planned = expected, took = time;
  }
  if (label.empty()) return "no operation is slower than planned: the time is spent between operations";
  const std::string behind =
      fmt::format("{} takes {:.4g} s of a step, planned {:.4g} s: the largest part of the difference", label,
                  took, planned);
  if (outside <= most) return behind;
  return fmt::format(
      "{} within operations; but {:.4g} s of this step's {:.4g} s are spent between them, where "
      "ranks wait for each other and other programs take the processor",
      behind, outside, step_seconds);
}

std::optional<double> FirstSteps::planned_seconds() const {
  return planned_ ? std::optional(planned_->seconds) : std::nullopt;
}

std::string FirstSteps::short_text() const {
  return planned_ && steps_.size() >= kBesidePlan ? fmt::format("planned {:.3g} s", planned_->seconds) : "";
}

}  // namespace ottava
