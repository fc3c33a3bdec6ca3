#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/predict/step_time.h"

namespace ottava {

/// Holds the time of the first steps against the one that was planned.
class PlannedPace {
 public:
  /// Of rank 0, whose step is `plan`; in a pipeline of all its ranks together, each of which is recorded for
  /// it.
  static PlannedPace of_step(const StepPlan& plan, const Experiment& experiment, Device device,
                             const Machine& machine);
  /// `planned` empty: the device is not known, and nothing is said.
  explicit PlannedPace(std::optional<StepTime> planned) : planned_(std::move(planned)) {}

  /// Seconds of a step, without waiting for data. The first two settle libraries and are not counted; the
  /// median of the next five is what is compared. Returns the sentence for the log when it is known.
  std::string add(double seconds);
  /// True if the step takes longer than the stated error of the plan allows.
  bool is_slower() const { return measured_ > 0 && measured_ > planned_->high(); }
  /// True once when the step took longer than the stated error allows: its time by label is wanted then.
  bool wants_profile();
  /// The sentence that names the label that takes the most time over what was planned for it. `seconds`: of
  /// one step, by label.
  std::string blame(const std::map<std::string, double, std::less<>>& seconds) const;
  /// "planned 0.480 s" for the progress line; empty before the comparison.
  std::string short_text() const;

 private:
  std::optional<StepTime> planned_;
  std::vector<double> steps_;
  double measured_ = 0;
  bool is_slow_ = false;
};

}  // namespace ottava
