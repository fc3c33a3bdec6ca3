#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/predict/machine.h"
#include "apps/train/step_plan.h"
#include "parallel/pipeline/replay.h"

namespace ottava {

/// How long a step takes, by replaying its recorded order. Not in it: stragglers, throttling, data, saves.
struct StepTime {
  struct Part {
    double seconds = 0, exposed = 0;  ///< of transfers: what compute waits for
    int64_t calls = 0;
  };
  double seconds = 0, error = 0;  ///< and the mean error of such times, as a part of them
  double low() const { return seconds * (1 - error); }
  double high() const { return seconds * (1 + error); }
  double compute = 0;                   ///< with what running beside traffic adds
  double transfers = 0, exposed = 0;    ///< between ranks: together, and what compute waits for
  std::map<std::string, Part> classes;  ///< class_of()
  std::map<std::string, Part> labels;   ///< by label, as the run's profile has them
  std::map<std::string, Part> axes;     ///< "dp_shard all_gather"
  double by_source[3] = {};             ///< compute by TimeSource
  double idle_share = 0;  ///< of a pipeline: of the time of all its ranks, what they compute nothing in
  /// "products bf16" or another class, or "dp_shard all_gather" where the wait for it is longer.
  std::string bound_by() const;
};

/// The recorded order of each rank of a pipeline, or of one rank, as a program for replay(): on GPUs with
/// the lanes of parallel/comm/lane.h, else with one.
std::vector<ReplayProgram> programs_of(std::span<const StepPlan> roles, const Machine& machine);
StepTime predict_step(const StepPlan& plan, const Machine& machine);
/// Of the ranks of a pipeline together, by their place in it: until the last has ended, and where the time of
/// the one goes that computes longest. What it waits for other stages is exposed in "pp recv".
StepTime predict_step(std::span<const StepPlan> roles, const Machine& machine);

/// A line for each distinct operation of the step, the longest together first: calls, milliseconds, bytes,
/// FLOPs, class and where the time comes from.
struct OperationForecast {
  const RecordedOperation* operation;
  PredictedTime time;  ///< of one call
};
std::vector<OperationForecast> predict_operations(const StepPlan& plan, const Machine& machine);

}  // namespace ottava
