#pragma once

#include <optional>
#include <string>

#include "apps/decide/device_peaks.h"
#include "apps/predict/machine.h"
#include "apps/train/first_steps.h"
#include "core/metrics/step_line.h"
#include "core/stopwatch.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// How fast a run is, compared with the peaks of its device, the plan's step time, and what FP8 `auto`
/// predicted.
class RunSpeed {
 public:
  /// All arguments must outlive it.
  RunSpeed(const Experiment& experiment, const StepPlan& plan, RankGroups& ranks, Device device);

  /// Finds the device's peaks and the planned step time, and logs them. All ranks call it. Returns the
  /// machine with which times are planned; nothing for a GPU that no table has.
  std::optional<Machine> find_peaks();
  /// Starts the time of logged steps: after `step` steps, `seconds_waited` of which were spent waiting for
  /// data.
  void begin(int64_t step, double seconds_waited);
  /// True once, if the step is slower than planned: StepProfile's times by label are then wanted.
  bool wants_profile() { return first_steps_.wants_profile(); }
  struct Step {
    int64_t number = 0;
    double seconds = 0;         ///< waiting for data included
    double seconds_waited = 0;  ///< for data
    bool is_last = false;       ///< of this run
  };
  /// To be called after each step, with its profile or null. Logs comparisons with what was predicted.
  void add(const Step& step, StepProfile* profile);
  /// Leaves out seconds spent between steps that are no part of them.
  void leave_out(double seconds) { left_out_ += seconds; }
  /// Fills in times and rates of the steps since the last call or begin().
  void fill(StepMetrics& metrics, double seconds_waited);
  /// On the first rank, after find_peaks(): the planned time of a step; absent if the device is not known.
  std::optional<double> planned_seconds() const { return first_steps_.planned_seconds(); }
  /// "planned 0.480 s" for the progress line, or empty.
  std::string planned_text() const { return first_steps_.short_text(); }

 private:
  PeakSearch peak_search() const;

  const Experiment& experiment_;
  const StepPlan& plan_;
  RankGroups& ranks_;
  Device device_;
  StepFlops flops_;  ///< of the mean rank
  DevicePeaks peaks_;
  FirstSteps first_steps_;
  Stopwatch since_fill_;
  int64_t filled_at_step_ = 0;
  double waited_before_ = 0, left_out_ = 0;
};

}  // namespace ottava
