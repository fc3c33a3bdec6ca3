#pragma once

#include <vector>

#include "apps/config/experiment.h"
#include "apps/train/step_plan.h"

namespace ottava {

/// The step of rank 0 of this mesh as record_first_rank() has it, of which three micro-batches were recorded:
/// those between are alike. Memory is packed for these.
StepPlan sample_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh);
/// One plan for each rank of a pipeline, recorded in full; without one that of sample_first_rank().
std::vector<StepPlan> sample_roles(const TrainingShape& shape, Device target, const Mesh& mesh);
/// The first rank of the mesh that has this place in its pipeline.
inline int first_rank_of_role(const Mesh& mesh, int role) {
  return role * (mesh.world_size() / mesh.size(MeshAxis::pp));
}

}  // namespace ottava
