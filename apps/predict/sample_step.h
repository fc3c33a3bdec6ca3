#pragma once

#include <vector>

#include "apps/config/experiment.h"
#include "apps/step/step_plan.h"

namespace ottava {

/// What record_first_rank() gives for rank 0 of this mesh, but from a recording of three micro-batches: those
/// in the middle are alike. Memory is packed for these three.
StepPlan sample_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh,
                           Packing packing = Packing::full);
/// One plan for each rank of a pipeline, recorded in full; without a pipeline that of sample_first_rank().
/// Each is of the first rank at its place.
std::vector<StepPlan> sample_first_of_roles(const TrainingShape& shape, Device target, const Mesh& mesh);
/// The same with the memory of the fullest at each place, of the first and of ranks_perhaps_fuller();
/// StepPlan::rank says which that is.
std::vector<StepPlan> sample_roles(const TrainingShape& shape, Device target, const Mesh& mesh);

/// sample_roles() of one experiment's shapes, which differ in what memory decides. What a rank of a pipeline
/// does not have to do otherwise than in the shape before is not recorded again.
class RoleRecordings {
 public:
  RoleRecordings(Device target, const Mesh& mesh, Packing packing = Packing::full)
      : target_(target), mesh_(mesh), packing_(packing) {}
  const std::vector<StepPlan>& of(const TrainingShape& shape);

 private:
  StepPlan record(const TrainingShape& shape, int role) const;

  struct Key {
    bool reduce_every_micro_batch, keeps_float8_codes;
    int64_t loss_chunk_rows;
    std::vector<Recompute> recompute;  ///< of the rank's blocks
    bool operator==(const Key&) const = default;
  };
  const Device target_;
  const Mesh& mesh_;
  const Packing packing_;

  std::vector<Key> keys_;
  std::vector<StepPlan> roles_;
};

/// The first rank of the mesh that has this place in its pipeline.
inline int first_rank_of_role(const Mesh& mesh, int role) {
  return role * (mesh.world_size() / mesh.size(MeshAxis::pp));
}
/// What that rank holds of the model.
ShardCoordinates coordinates_of_role(const Experiment& experiment, int role);

}  // namespace ottava
