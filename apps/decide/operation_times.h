#pragma once

#include <map>
#include <memory>
#include <string>

#include "apps/config/experiment.h"
#include "apps/decide/workbench.h"
#include "apps/step/step_plan.h"

namespace ottava {

/// A stream on `device` that computes products as the experiment's steps do, on a GPU each with the fastest
/// algorithm.
Stream stream_like_steps(const Experiment& experiment, Device device);

/// Times what recorded steps do, on the stream's device: every distinct operation on operands of its shapes
/// and dtypes in memory of its own, taking the best of several batches of calls. Times are kept by operation,
/// so that steps share them. Operations of a step are taken to run one after the other.
class OperationTimes {
 public:
  /// `vocabulary`: the rank's, for tokens.
  OperationTimes(Stream& stream, int64_t vocabulary) : stream_(stream), vocabulary_(vocabulary) {}
  /// Milliseconds of all operations of `step`, each as often as it is called.
  double of(const StepPlan& step);
  /// The same for those operations that `step` has but `other` does not, or has less often.
  double beyond(const StepPlan& step, const StepPlan& other);

 private:
  void give_workspace(int64_t bytes);
  double of_call(const RecordedOperation& operation);
  Stream& stream_;
  std::unique_ptr<Workbench> workspace_;
  int64_t workspace_bytes_ = 0;
  int64_t vocabulary_;
  std::map<std::string, double> milliseconds_;
};

/// Milliseconds of those collectives of a step for which the compute stream waits at once
/// (core/beside_compute.h): tensor parallel's, and every maximum of amaxes; not FSDP's gathers and sums,
/// which run beside compute. Each kind is timed on its communicator at its size. Every rank makes the call
/// with the same order. 0 for one rank.
double waited_milliseconds(Stream& stream, RankGroups& ranks, const RecordedOrder& order);

}  // namespace ottava
