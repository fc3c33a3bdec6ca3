#pragma once

#include <map>
#include <memory>
#include <string>

#include "apps/config/experiment.h"
#include "apps/decide/workbench.h"
#include "apps/train/step_plan.h"

namespace ottava {

/// A stream of `device` whose products are computed as the experiment's steps compute theirs, on a GPU each
/// with the fastest algorithm.
Stream stream_like_steps(const Experiment& experiment, Device device);

/// Times what recorded steps do, on the stream's device: every distinct operation on operands of its shapes
/// and dtypes in memory of its own, the best of several batches of calls; kept by operation, so that steps
/// that share one share its time. In a step they run one after the other.
class OperationTimes {
 public:
  /// `vocabulary` of the rank, for tokens.
  OperationTimes(Stream& stream, int64_t vocabulary) : stream_(stream), vocabulary_(vocabulary) {}
  /// Milliseconds of all operations of `step`, each as often as it is called.
  double of(const StepPlan& step);
  /// Of those that `step` has and `other` has not, or has less often.
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

/// Milliseconds of the collectives of a step that the compute stream waits for where they stand
/// (core/beside_compute.h): tensor parallel's, and every maximum of amaxes. Each kind is timed on its
/// communicator at its size; gathers and sums of FSDP, which run beside compute, are none of them. Every rank
/// makes the call with the same order. 0 for one rank.
double waited_milliseconds(Stream& stream, RankGroups& ranks, const RecordedOrder& order);

}  // namespace ottava
