#include "parallel/rank_groups.h"

#include <utility>

#include "parallel/solo_communicator.h"

namespace ottava {

RankGroups::RankGroups(std::unique_ptr<Communicator> all, const Mesh& mesh) : world(std::move(all)) {
  const int rank = world->rank();
  dp_shard = world->split("dp_shard", mesh.group({MeshAxis::dp_shard}, rank));
  dp_replicate = world->split("dp_replicate", mesh.group({MeshAxis::dp_replicate}, rank));
  tp = world->split("tp", mesh.group({MeshAxis::tp}, rank));
  loss = world->split("loss", mesh.loss_group(rank));
  replica = world->split("replica", mesh.replica_group(rank));
  tensor_parallel = TensorParallelGroup(*tp);
  coordinates = mesh.shard_coordinates(rank);
  data_rank = loss->rank();
  data_size = loss->size();
}

RankGroups solo_rank_groups() {
  return {std::make_unique<SoloCommunicator>(), Mesh({.dp_shard = 1}, 1)};
}

}  // namespace ottava
