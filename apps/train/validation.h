#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/data/left_out.h"
#include "apps/data/training_data.h"
#include "apps/report/metrics_reporter.h"
#include "apps/train/stop_signals.h"
#include "apps/train/task_scores.h"
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
  enum class End {
    whole,
    stopped,  ///< a rank was asked to stop
    unread    ///< a rank cannot read its tokens
  };
  struct Outcome {
    End end = End::whole;
    std::string problem;  ///< what this rank cannot read; empty: nothing of the kind
  };
  /// Asks for `results`, of results_due(), after step `step` and reports them to `reporter`. All ranks call
  /// it, and break off at the same pass; what was not finished is not reported. `plan` is that of the
  /// engine's arena.
  Outcome run(int64_t step, const std::vector<std::string>& results, TrainingEngine& engine,
              const MemoryPlan& plan, MetricsReporter& reporter, HostSpans* spans);

 private:
  // These throw BrokenOff on all ranks.
  MetricsReporter::Validation validate(ValidationSet& set, TrainingEngine& engine);
  void score(int64_t step, const EncodedTask& task, TrainingEngine& engine, MetricsReporter& reporter);
  /// Number of samples, as soon as a rank knows it; INT64_MAX before.
  int64_t end_of(BatchSource& data);
  /// One exchange per pass. `problem`: what this rank cannot read; empty: nothing of the kind.
  void require_all_go_on(std::string problem = {});

  const Experiment& experiment_;
  RankGroups& ranks_;
  const StopSignals* signals_;
  std::vector<ValidationSet> sets_;
  std::vector<LeftOut> left_out_;     ///< of each of them
  std::vector<int32_t> token_bytes_;  ///< by id; 0 of special tokens
  std::vector<EncodedTask> tasks_;
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace ottava
