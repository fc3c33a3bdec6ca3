#include "parallel/comm/solo_communicator.h"

#include <cstring>

#include "core/cuda/runtime.h"

namespace ottava {

SoloCommunicator::SoloCommunicator() : SoloCommunicator("world", 0, std::make_shared<RankState>(0, 1)) {}

SoloCommunicator::SoloCommunicator(std::string axis, int world_rank, std::shared_ptr<RankState> state)
    : Communicator({std::move(axis), {world_rank}, 0}, std::move(state)) {}

void SoloCommunicator::issue(Stream& stream, uint64_t, std::vector<CollectiveCall> calls) {
  for (const CollectiveCall& call : calls) {
    state().enter(call.kind, axis(), call.label);
    if (call.recv.data != call.send.data && call.send.bytes() > 0) {
      if (stream.type() == DeviceType::cuda) {
        cuda::copy(call.recv.data, call.send.data, call.send.bytes(), stream.native());
      } else {
        std::memcpy(call.recv.data, call.send.data, call.send.bytes());
      }
    }
    state().leave();
  }
}

std::unique_ptr<Communicator> SoloCommunicator::make_split(Members members) {
  fail<CommError>("split", "axis {} wants {} ranks of a single one", members.axis,
                  members.world_ranks.size());
}

}  // namespace ottava
