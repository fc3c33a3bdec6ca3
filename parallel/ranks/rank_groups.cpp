#include "parallel/ranks/rank_groups.h"

#include <utility>

#include "parallel/comm/solo_communicator.h"

namespace ottava {

RankGroups::RankGroups(std::unique_ptr<Communicator> host, std::unique_ptr<Communicator> device,
                       const Mesh& mesh)
    : control(std::move(host)), world(std::move(device)) {
  const int rank = world->rank();
  control_loss = control->split("loss", mesh.loss_group(rank));
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
  return {std::make_unique<SoloCommunicator>(), std::make_unique<SoloCommunicator>(),
          Mesh({.dp_shard = 1}, 1)};
}

}  // namespace ottava
