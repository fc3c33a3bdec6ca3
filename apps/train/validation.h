#pragma once

#include <cstdint>
#include <vector>

#include "apps/report/metrics_reporter.h"
#include "apps/train/stop_signals.h"
#include "apps/train/task_scores.h"
#include "apps/train/training_data.h"
#include "core/trace/host_spans.h"

namespace ottava {

/// What a run asks its model between steps: the loss on text that it does not train on, the questions of its
/// tasks, and how it continues prompts.
class Validation {
 public:
  /// Opens sets and tasks, and throws what opening them throws. All arguments must outlive it; `signals` may
  /// be null.
  Validation(const Experiment& experiment, RankGroups& ranks, const StopSignals* signals);

  std::vector<ValidationSet>& sets() { return sets_; }
  /// Throws DataError on all ranks for a set that has not even one window.
  void require_data();
  /// Does what is due after step `step` and reports it to `reporter`. All ranks call it. `plan` is that of
  /// the engine's arena. Returns false if a rank was asked to stop meanwhile: all ranks break off at the same
  /// pass, and what was not finished is not reported.
  bool run(int64_t step, TrainingEngine& engine, const MemoryPlan& plan, MetricsReporter& reporter,
           HostSpans* spans);

 private:
  // Throw Stopped on all ranks.
  MetricsReporter::Validation validate(ValidationSet& set, TrainingEngine& engine);
  void evaluate(int64_t step, TrainingEngine& engine, MetricsReporter& reporter);
  /// Number of samples, as soon as a rank knows it; INT64_MAX before.
  int64_t end_of(BatchSource& data);
  void stop_if_asked();

  const Experiment& experiment_;
  RankGroups& ranks_;
  const StopSignals* signals_;
  std::vector<ValidationSet> sets_;
  std::vector<int32_t> token_bytes_;  ///< by id; 0 of special tokens
  std::vector<EncodedTask> tasks_;
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace ottava
