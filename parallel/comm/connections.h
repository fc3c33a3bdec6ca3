#pragma once

#include <cstddef>
#include <set>
#include <vector>

namespace ottava {

/// The most channels, each an SM while a call runs, that a communicator of NCCL's takes on today's machines
/// (NVIDIA/nccl#1685: 8 H100), if comm.sm_budget allows it as many.
constexpr int kNcclChannels = 32;

/// Ranks between which calls of one lane (lane.h) travel: those of a communicator.
struct ConnectedGroup {
  std::vector<int> ranks;  ///< of the world
  size_t lane = 0;
  /// A communicator that is split from one of an equal group has that one's connections.
  bool operator==(const ConnectedGroup&) const = default;
};

/// What connects a rank with others, by the communicators that it has made: where each has buffers of its
/// own, as under NCCL, they take memory.
struct RankConnections {
  struct Group {
    ConnectedGroup of;
    std::set<int> peers = {};  ///< ranks of the world with which messages are exchanged
  };
  int rank = 0;
  std::vector<Group> groups;
};

}  // namespace ottava
