#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "apps/config/experiment.h"
#include "parallel/sharding/mesh.h"

namespace ottava::test {

/// How the ranks share a step; every degree has to be given.
struct Layout {
  int dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  int64_t micro_batches = 1;
  int pp = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;  ///< stages of each rank of the pipeline

  int data_ranks() const { return dp_replicate * dp_shard; }
  int world_size() const { return pp * data_ranks() * cp * tp; }
  Mesh mesh() const {
    return Mesh({.pp = pp, .dp_replicate = dp_replicate, .dp_shard = dp_shard, .cp = cp, .tp = tp},
                world_size());
  }
};

/// What a run on some layout did.
struct LayoutCurve {
  std::vector<double> loss;                 ///< mean over the tokens of all ranks, per step
  std::vector<double> z_loss;               ///< the same
  std::vector<double> grad_norm;            ///< per step
  std::vector<Skip> why;                    ///< per step, the same on all ranks
  std::vector<std::vector<float>> weights;  ///< masters after the last step, per world rank
  std::vector<int64_t> calls;  ///< collectives that the host issued in the last step, per world rank
  std::vector<std::vector<float>> sequence_losses;  ///< of the last step where asked for, per world rank
  std::vector<MemoryPlan> memory;                   ///< per world rank
  std::vector<CommStats> planned;                   ///< of one step, recorded on `meta`, per world rank
  std::vector<CommStats> measured;                  ///< of the last step, per world rank
};

/// Muon trains the matrices of the blocks, as with optimizer.name: Muon.
void give_matrices_to_muon(TrainingShape& shape);

/// The shape of a step of one process, taken apart for a rank of the layout. Throws if the batch does not
/// divide.
TrainingShape shape_on(const TrainingShape& whole, const Layout& layout);

/// Trains `whole.batch` sequences per step on tokens that are the same for every layout, ranks as threads,
/// from seed 7, with the norms before attention four times as large so that a curve shows to which tokens it
/// attends. Throws where the operations of the last step are not those that are planned, in their order, or
/// their calls have other operands; with FP8 this is seen only in steps that others follow.
LayoutCurve train_on(const TrainingShape& whole, const Layout& layout, int steps);
/// The same where every message between ranks is under way for a time of its own, up to 2 ms.
LayoutCurve train_slowly_on(const TrainingShape& whole, const Layout& layout, int steps);
LayoutCurve train_on(const TrainingShape& whole, const Layout& layout, int steps, Device device);
/// Runs body on threads with the communicators of a layout over NCCL, rank r for GPU r. Needs
/// nccl_ranks(layout.world_size()) of them (nccl_ranks.h).
void run_nccl_mesh(const Layout& layout,
                   const std::function<void(std::unique_ptr<RankGroups>, int rank)>& body);
/// train_on over NCCL, operation by operation or, from the third step on, as graphs. Where the shape has
/// cuDNN's attention, each rank has one of its own.
enum class StepForm { plain, graphs };
LayoutCurve train_over_nccl(const TrainingShape& whole, const Layout& layout, int steps,
                            StepForm form = StepForm::plain);

}  // namespace ottava::test
