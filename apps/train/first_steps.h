#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/decisions.h"
#include "apps/predict/step_time.h"

namespace ottava {

/// Compares the time of a run's first steps with the times predicted for them: after the 7th step with the
/// plan's, and after the 20th with that of quantize.linear.float8.auto (kFloat8StepDecision), which is meant
/// to be closer. A shorter run is compared at its end.
class FirstSteps {
 public:
  /// Nothing was predicted, so nothing is reported.
  FirstSteps() = default;
  /// `planned` is empty if the device is not known.
  FirstSteps(std::optional<StepTime> planned, const Decisions& decisions);
  /// The planned time of rank 0, whose step is `plan`; for a pipeline, of all its ranks together, each of
  /// which is recorded for this.
  static StepTime planned(const StepPlan& plan, const Experiment& experiment, Device device,
                          const Machine& machine);

  struct Line {
    std::string text;
    bool is_slow = false;  ///< than the stated error of the plan allows
  };
  /// To be called after each step, with its time without waiting for data. The first three steps, in which
  /// libraries settle, are not counted; a run of no more steps reports nothing. When it is time for a
  /// comparison, returns lines for the log that compare the median of the steps so far with the prediction;
  /// else none. `is_last`: the run ends with this step.
  std::vector<Line> add(double seconds, bool is_last);
  /// True once, if the step is slower than the plan's error allows: its time by label is then wanted.
  bool wants_profile();
  /// A sentence that names the label whose time exceeds its plan the most, and the time between operations if
  /// that exceeds the plan by more. `seconds`: of one step, by label; `step_seconds`: of all of it, without
  /// waiting for data.
  std::string blame(const std::map<std::string, double, std::less<>>& seconds, double step_seconds) const;
  /// The planned time of a step; absent if the device is not known.
  std::optional<double> planned_seconds() const;
  /// "planned 0.480 s" for the progress line; empty before the 7th step.
  std::string short_text() const;

 private:
  Line beside_plan(double seconds) const;
  Line beside_auto(double seconds) const;

  std::optional<StepTime> planned_;
  std::optional<Decisions::Entry> auto_;
  std::vector<double> steps_;
  bool is_slow_ = false;
};

}  // namespace ottava
