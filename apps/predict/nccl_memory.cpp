#include "apps/predict/nccl_memory.h"

#include <algorithm>

namespace ottava {

NcclMemory nccl_memory(const RankConnections& connections, const Machine& machine) {
  constexpr int64_t kChannelBytes = int64_t{14} << 20, kNeighboursOfCommunicator = 2;
  NcclMemory memory{.bytes_of_neighbour = machine.nccl_channels * kChannelBytes};
  memory.bytes_of_communicator = kNeighboursOfCommunicator * memory.bytes_of_neighbour;
  if (machine.nccl_channels == 0) return memory;
  const auto machine_of = [&](int rank) { return rank / machine.ranks_per_node; };
  const auto is_near = [&](int peer) { return machine_of(peer) == machine_of(connections.rank); };
  for (const RankConnections::Group& group : connections.groups) {
    if (group.of.ranks.size() == 1) continue;
    ++memory.communicators;
    const int64_t near = std::ranges::count_if(group.peers, is_near);
    memory.neighbours += near + (near < std::ssize(group.peers) ? 1 : 0);
  }
  return memory;
}

}  // namespace ottava
