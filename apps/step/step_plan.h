#pragma once

#include <span>
#include <vector>

#include "apps/config/training_shape.h"
#include "core/cost.h"
#include "core/memory/plan.h"
#include "core/trace/step_profile.h"
#include "parallel/comm/connections.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// FLOPs of a step as computed, by the precision in which they run.
struct StepFlops {
  double fp32 = 0, bf16 = 0, fp8 = 0;
};

/// What a run of the step recorded on `meta` says about one rank's memory and cost. With FP8 it is a step as
/// most are: an optimizer has left the amaxes of the weights, and recipe delayed's amax history is full.
/// Those before take the same memory.
struct StepPlan {
  MemoryPlan memory;
  std::vector<CostRecorder::Total> costs;     ///< of one training step
  std::vector<RecordedOperation> operations;  ///< of that step
  RecordedOrder order;                        ///< of that step
  CommStats traffic;                          ///< of that step, before which no validation made FP8 codes
  RankConnections connections = {};           ///< only of record_rank(): of the rank with others
  double flops(Precision precision) const;
  StepFlops flops() const;
  int64_t matmul_workspace_bytes = 0;
  int rank = 0;  ///< of record_rank(): the rank that has this memory
};

/// The mean over ranks, one plan for each.
StepFlops mean_flops(std::span<const StepPlan> ranks);
/// The mean over the ranks of a job, each of which brings its own plan. All ranks call it; `ranks` moves host
/// memory.
StepFlops mean_flops(const StepPlan& plan, Communicator& ranks);

/// Records set-up, a training step and, if configured, a validation step on `meta`, for the rank of `ranks`.
StepPlan record_step(const TrainingShape& shape, Device target, RankGroups& ranks,
                     Packing packing = Packing::full);
/// What one training step does, in order, with what is planned for it (StepProfile on `meta`).
std::vector<StepProfile::Span> record_spans(const TrainingShape& shape, Device target, RankGroups& ranks);
/// record_step() for one rank of this mesh, without other ranks.
StepPlan record_rank(const TrainingShape& shape, Device target, const Mesh& mesh, int rank,
                     Packing packing = Packing::full);
/// The same for rank 0.
StepPlan record_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh);

}  // namespace ottava
