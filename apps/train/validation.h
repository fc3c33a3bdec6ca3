#pragma once

#include <cstdint>
#include <vector>

#include "apps/report/metrics_reporter.h"
#include "apps/train/task_scores.h"
#include "apps/train/training_data.h"
#include "core/trace/host_spans.h"

namespace ottava {

/// What a run asks its model between steps: the loss of text that it does not train on, the questions of its
/// tasks, and how it goes on with prompts.
class Validation {
 public:
  /// Opens sets and tasks; `experiment` and `ranks` must outlive it. Throws what opening them throws.
  Validation(const Experiment& experiment, RankGroups& ranks);

  std::vector<ValidationSet>& sets() { return sets_; }
  /// Throws DataError on all ranks for a set that ends before its first batch.
  void require_data();
  /// After step `step`: what is due, into `reporter`. All ranks call it. `plan` is that of the engine's
  /// arena.
  void run(int64_t step, TrainingEngine& engine, const MemoryPlan& plan, MetricsReporter& reporter,
           HostSpans* spans);

 private:
  MetricsReporter::Validation validate(ValidationSet& set, TrainingEngine& engine);
  void evaluate(int64_t step, TrainingEngine& engine, MetricsReporter& reporter);
  bool is_past_end(BatchSource& data, int64_t samples);

  const Experiment& experiment_;
  RankGroups& ranks_;
  std::vector<ValidationSet> sets_;
  std::vector<int32_t> token_bytes_;  ///< by id; 0 of special tokens
  std::vector<ChoiceTask> tasks_;
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace ottava
