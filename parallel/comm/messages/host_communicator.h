#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/messages/message_port.h"

namespace ottava {

/// Of one half of the pipeline of reductions, shared by up to 64 peers.
constexpr int64_t kMessageWorkspaceBytes = 4 << 20;

/// The communicator of all ranks of `state` over a port that reaches them. Transactions queue on the rank's
/// communication thread, where they run while the rank computes. GPU tensors are copied through pinned host
/// memory, which works anywhere but is fast nowhere. `workspace_bytes`: in place of kMessageWorkspaceBytes.
std::unique_ptr<Communicator> make_message_world(std::shared_ptr<MessagePort> port,
                                                 std::shared_ptr<RankState> state,
                                                 int64_t workspace_bytes = kMessageWorkspaceBytes);

}  // namespace ottava
