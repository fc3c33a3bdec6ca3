#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/decide/decisions.h"
#include "apps/predict/step_time.h"

namespace ottava {

/// Compares the time of a run's first steps with each time that was predicted for them, each once: with the
/// plan's after the 7th step, and with that of quantize.linear.float8.auto (kFloat8StepDecision), which is
/// meant to be closer, after the 20th; or at the end of a run that is shorter.
class FirstSteps {
 public:
  /// Nothing was predicted, and nothing is said.
  FirstSteps() = default;
  /// `planned` empty: the device is not known.
  FirstSteps(std::optional<StepTime> planned, const Decisions& decisions);
  /// Of rank 0, whose step is `plan`; in a pipeline of all its ranks together, each of which is recorded for
  /// it.
  static StepTime planned(const StepPlan& plan, const Experiment& experiment, Device device,
                          const Machine& machine);

  struct Line {
    std::string text;
    bool is_slow = false;  ///< than the stated error of the plan allows
  };
  /// After each step, which took so long without waiting for data. The first three settle libraries and are
  /// not counted: a run of no more says nothing. Returns lines for the log, which compare the median of the
  /// others so far with the predictions whose moment has come; else none. `is_last`: the run ends with this
  /// step.
  std::vector<Line> add(double seconds, bool is_last);
  /// True once when the step is slower than the plan's error allows: its time by label is wanted then.
  bool wants_profile();
  /// The sentence that names the label that takes the most time over what was planned for it. `seconds`: of
  /// one step, by label.
  std::string blame(const std::map<std::string, double, std::less<>>& seconds) const;
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
