#include "parallel/comm/solo_communicator.h"

#include "core/ops/elementwise.h"

namespace ottava {

SoloCommunicator::SoloCommunicator() : SoloCommunicator("world", 0, std::make_shared<RankState>(0, 1)) {}

SoloCommunicator::SoloCommunicator(std::string axis, int world_rank, std::shared_ptr<RankState> state)
    : Communicator({std::move(axis), {world_rank}, 0}, std::move(state)) {}

void SoloCommunicator::issue(Stream& stream, uint64_t, std::vector<CollectiveCall> calls) {
  for (const CollectiveCall& call : calls) {
    const int64_t sequence = state().enter(entered(call.kind, call.label));
    if (call.recv.data != call.send.data) copy(stream, call.send, call.recv.reshape(call.send.shape));
    state().leave(sequence);
  }
}

std::unique_ptr<Communicator> SoloCommunicator::make_split(Members members) {
  fail<CommError>("split", "axis {} wants {} ranks of a single one", members.axis,
                  members.world_ranks.size());
}

}  // namespace ottava
