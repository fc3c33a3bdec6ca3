#pragma once

#include <memory>

#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace ottava {

/// One communicator per way of standing together in a mesh. Groups of one rank are solo and cost nothing.
struct MeshCommunicators {
  /// All ranks make theirs together; `world` has the mesh's size and outlives them. Throws ConfigError.
  MeshCommunicators(Communicator& world, const Mesh& mesh);

  std::unique_ptr<Communicator> dp_replicate, dp_shard, tp;
  std::unique_ptr<Communicator> loss;     ///< dp_replicate x dp_shard x cp: ranks that see different tokens
  std::unique_ptr<Communicator> replica;  ///< dp_shard x cp x tp: ranks that hold one copy of the parameters together
};

}  // namespace ottava
