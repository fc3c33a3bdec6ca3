#pragma once

#include <vector>

#include "apps/train/training_shape.h"
#include "core/cost.h"
#include "core/memory/plan.h"
#include "core/trace/step_profile.h"
#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// What a recorded run of the step on `meta` says about memory and cost, for one rank.
struct StepPlan {
  MemoryPlan memory;
  std::vector<CostRecorder::Total> costs;     ///< of one training step
  std::vector<RecordedOperation> operations;  ///< of that step
  RecordedOrder order;                        ///< of that step
  CommStats traffic;                          ///< of that step
  double flops(Precision precision) const;
  int64_t matmul_workspace_bytes = 0;
};

/// Runs set-up, a training step and, if configured, a validation step on `meta` for the rank of `ranks`.
StepPlan record_step(const TrainingShape& shape, Device target, RankGroups& ranks);
/// What one training step does, in order, with what is planned for it (StepProfile on `meta`).
std::vector<StepProfile::Span> record_spans(const TrainingShape& shape, Device target, RankGroups& ranks);
/// The same for one rank of this mesh, without ranks.
StepPlan record_rank(const TrainingShape& shape, Device target, const Mesh& mesh, int rank);
/// And for rank 0.
StepPlan record_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh);

}  // namespace ottava
