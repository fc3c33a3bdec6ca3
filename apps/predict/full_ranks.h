#pragma once

#include <vector>

#include "apps/config/training_shape.h"
#include "core/device.h"
#include "parallel/sharding/mesh.h"

namespace ottava {

/// Ranks that may take more memory of their device than the first at their place in the pipeline, which has
/// the largest shards: with Muon, owners of matrices that have more of them at a time
/// (parallel/sharding/muon_owners.h) or, on a CPU, others, whose products may need a larger workspace; and on
/// a CPU four of those that hold other parts of the same sequences, with other workspaces of attention. Of
/// ranks that are alike the first; of thousands a few.
std::vector<int> ranks_perhaps_fuller(const TrainingShape& shape, Device target, const Mesh& mesh, int role);

}  // namespace ottava
