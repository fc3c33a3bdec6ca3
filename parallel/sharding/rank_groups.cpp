#include "parallel/sharding/rank_groups.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/all_ranks.h"
#include "parallel/comm/solo_communicator.h"

namespace ottava {

RankGroups::RankGroups(std::unique_ptr<Communicator> host, std::unique_ptr<Communicator> device,
                       const Mesh& mesh)
    : control(std::move(host)), world(std::move(device)) {
  const int rank = world->rank();
  const auto along = [&](MeshAxis axis) {
    return world->split(std::string(name_of(axis)), mesh.group({axis}, rank));
  };
  control_loss = control->split("loss", mesh.loss_group(rank));
  pp = along(MeshAxis::pp);
  dp_shard = world->split("dp_shard", mesh.group({MeshAxis::dp_shard, MeshAxis::cp}, rank));
  // On the ranks of dp_shard they share what NCCL takes for it. It is so on all ranks, or on none.
  const auto of_dp_shard_or_world = [&](const char* axis, const std::vector<int>& ranks) {
    return ranks == dp_shard->world_ranks() ? dp_shard->split(axis, all_ranks(dp_shard->size()))
                                            : world->split(axis, ranks);
  };
  dp_replicate = along(MeshAxis::dp_replicate);
  cp = along(MeshAxis::cp);
  tp = along(MeshAxis::tp);
  replica = of_dp_shard_or_world("replica", mesh.replica_group(rank));
  stage = pp->size() == 1 ? replica : of_dp_shard_or_world("stage", mesh.stage_group(rank));
  control_cp = control->split("cp", mesh.group({MeshAxis::cp}, rank));
  tensor_parallel = TensorParallelGroup(*tp);
  context_parallel = ContextParallelGroup(*cp);
  coordinates = mesh.shard_coordinates(rank);
  data_rank = mesh.coordinate(MeshAxis::dp_replicate, rank) * mesh.size(MeshAxis::dp_shard) +
              mesh.coordinate(MeshAxis::dp_shard, rank);
  data_size = mesh.size(MeshAxis::dp_replicate) * mesh.size(MeshAxis::dp_shard);
}

Communicator& RankGroups::head_sharers(int count) {
  std::unique_ptr<Communicator>& sharers = head_sharers_[count];
  if (!sharers) {
    std::vector<int> neighbours(count);
    std::iota(neighbours.begin(), neighbours.end(), tp->rank() / count * count);
    sharers = tp->split("kv_heads", neighbours);
  }
  return *sharers;
}

RankGroups solo_rank_groups() {
  return {std::make_unique<SoloCommunicator>(), std::make_unique<SoloCommunicator>(),
          Mesh({.dp_shard = 1}, 1)};
}

}  // namespace ottava
