#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/predict/machine.h"
#include "apps/step/step_plan.h"
#include "parallel/pipeline/replay.h"

namespace ottava {

/// How long a step takes, by replaying its recorded order. Stragglers, throttling, data and saves are not
/// included.
struct StepTime {
  struct Part {
    double seconds = 0, exposed = 0;  ///< exposed: for transfers, what compute waits for
    int64_t calls = 0;
  };
  double seconds = 0, error = 0;  ///< error: what to allow for, as a fraction
  double low() const { return seconds * (1 - error); }
  double high() const { return seconds * (1 + error); }
  double compute = 0;                   ///< including the slowdown beside traffic
  double transfers = 0, exposed = 0;    ///< between ranks: in all, and what compute waits for
  std::map<std::string, Part> classes;  ///< class_of()
  std::map<std::string, Part> labels;   ///< by label, as the run's profile has them
  std::map<std::string, Part> axes;     ///< "dp_shard all_gather"
  double by_source[3] = {};             ///< compute by TimeSource
  double idle_share = 0;  ///< for a pipeline: the part of its ranks' time in which they compute nothing
  /// What takes longest: a class such as "products bf16", or "dp_shard all_gather" if the wait for that is
  /// longer.
  std::string bound_by() const;
};

/// The recorded order of each rank of a pipeline, or of one rank, as a program for replay(): on GPUs with
/// the lanes of parallel/comm/lane.h, else with one.
std::vector<ReplayProgram> programs_of(std::span<const StepPlan> roles, const Machine& machine);
StepTime predict_step(const StepPlan& plan, const Machine& machine);
/// The same for the ranks of a pipeline together, in order: the time until the last one has ended, and where
/// the time of the rank that computes longest goes. Its waits for other stages are exposed in "pp recv".
StepTime predict_step(std::span<const StepPlan> roles, const Machine& machine);

/// The largest part of the time by which the second is slower: "6.5 ms more of elementwise"; "as fast" where
/// none is.
std::string why_slower(const StepTime& first, const StepTime& second);

/// One distinct operation of a step, and its predicted time.
struct OperationForecast {
  const RecordedOperation* operation;
  PredictedTime time;  ///< of one call
};
/// Every distinct operation of the step, those that take longest in all first.
std::vector<OperationForecast> predict_operations(const StepPlan& plan, const Machine& machine);

}  // namespace ottava
