#include "apps/train/planned_pace.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/predict/sample_step.h"

namespace ottava {
namespace {

constexpr size_t kSettling = 2, kCompared = 5;

}  // namespace

// Labels are rank 0's: its profile is what is held against them.
PlannedPace PlannedPace::of_step(const StepPlan& plan, const Experiment& e, Device device,
                                 const Machine& machine) {
  StepTime planned = predict_step(plan, machine);
  if (!e.shape.pipeline.is_on()) return PlannedPace(std::move(planned));
  StepTime all = predict_step(sample_roles(e.shape, device, e.mesh), machine);
  all.labels = std::move(planned.labels);
  return PlannedPace(std::move(all));
}

std::string PlannedPace::add(double seconds) {
  if (!planned_ || measured_ > 0) return {};
  steps_.push_back(seconds);
  if (steps_.size() < kSettling + kCompared) return {};
  const auto middle = steps_.begin() + kSettling + kCompared / 2;
  std::nth_element(steps_.begin() + kSettling, middle, steps_.end());
  measured_ = *middle;
  is_slow_ = is_slower();
  const std::string times = fmt::format("a step takes {:.4g} s, planned {:.4g} s ({:.4g} to {:.4g})",
                                        measured_, planned_->seconds, planned_->low(), planned_->high());
  if (is_slow_) return times + ": longer than the error of the plan explains";
  return times + (measured_ < planned_->low() ? ": faster than planned" : ": as planned");
}

bool PlannedPace::wants_profile() { return std::exchange(is_slow_, false); }

std::string PlannedPace::blame(const std::map<std::string, double, std::less<>>& seconds) const {
  std::string label;
  double most = 0, planned = 0, took = 0;
  for (const auto& [name, time] : seconds) {
    const auto part = planned_->labels.find(name);
    const double expected = part == planned_->labels.end() ? 0 : part->second.seconds + part->second.exposed;
    if (time - expected <= most) continue;
    most = time - expected, label = name, planned = expected, took = time;
  }
  if (label.empty()) return "no operation is slower than planned: the time goes to what is between them";
  return fmt::format("{} takes {:.4g} s of a step, planned {:.4g} s: the largest part of the difference",
                     label, took, planned);
}

std::string PlannedPace::short_text() const {
  return measured_ > 0 ? fmt::format("planned {:.3g} s", planned_->seconds) : "";
}

}  // namespace ottava
