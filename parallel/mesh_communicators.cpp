#include "parallel/mesh_communicators.h"

namespace ottava {

MeshCommunicators::MeshCommunicators(Communicator& world, const Mesh& mesh) {
  if (world.size() != mesh.world_size()) {
    fail<ConfigError>("mesh", "the mesh is {}, but there are {} ranks", mesh.describe(), world.size());
  }
  int rank = world.rank();
  dp_replicate = world.split("dp_replicate", mesh.group({MeshAxis::dp_replicate}, rank));
  // With context parallelism parameters are sharded over its ranks too.
  dp_shard = world.split("dp_shard", mesh.group({MeshAxis::dp_shard, MeshAxis::cp}, rank));
  tp = world.split("tp", mesh.group({MeshAxis::tp}, rank));
  loss = world.split("loss", mesh.loss_group(rank));
  replica = world.split("replica", mesh.replica_group(rank));
}

}  // namespace ottava
