#pragma once

#include <memory>
#include <span>
#include <string>

#include "parallel/comm/comm_thread.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// How bytes in host memory travel between ranks. Used by the rank's communication thread alone.
class HostTransport {
 public:
  virtual ~HostTransport() = default;
  virtual std::string_view name() const = 0;
  /// Carries out one transaction and returns when its buffers are free. Throws CommError.
  virtual void run(std::span<const CollectiveCall> calls) = 0;
  /// The transport among some of these ranks, given as world ranks; local, does not block. `ordinal` tells
  /// apart several groups of the same name and members.
  virtual std::shared_ptr<HostTransport> split(const std::string& axis, const std::vector<int>& world_ranks,
                                               int rank, int ordinal) = 0;
};

/// A communicator over a HostTransport: queues transactions on the rank's communication thread, where they
/// run while the rank computes. GPU tensors are copied through pinned host memory: correct anywhere, fast
/// nowhere.
std::unique_ptr<Communicator> make_host_world(std::shared_ptr<HostTransport> transport,
                                              std::shared_ptr<RankState> state);

}  // namespace ottava
