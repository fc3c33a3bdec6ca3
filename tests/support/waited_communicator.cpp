#include "tests/support/waited_communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ottava::test {
namespace {

class WaitedCommunicator final : public Communicator {
 public:
  WaitedCommunicator(std::unique_ptr<Communicator> inner, std::vector<double>& seconds)
      : Communicator({inner->axis(), inner->world_ranks(), inner->rank()}, inner->shared_state()),
        inner_(std::move(inner)),
        seconds_(seconds) {}

  std::string_view transport() const override { return inner_->transport(); }
  bool overlaps() const override { return false; }

 private:
  Request call(Stream& stream, const CollectiveCall& c) {
    switch (c.kind) {
      case Collective::all_reduce:
        return inner_->all_reduce(stream, {c.send, c.recv, c.op, c.label});
      case Collective::reduce_scatter:
        return inner_->reduce_scatter(stream, {c.send, c.recv, c.op, c.label});
      case Collective::all_gather:
        return inner_->all_gather(stream, {c.send, c.recv, c.label});
      case Collective::all_to_all:
        return inner_->all_to_all(stream, {c.send, c.recv, c.label});
      case Collective::send:
        return inner_->send(stream, {c.send, c.peer, c.label});
      case Collective::recv:
        return inner_->recv(stream, {c.recv, c.peer, c.label});
      case Collective::barrier:
        inner_->barrier(stream, c.label);
        return {};
      case Collective::graph:
        break;  // counted, never issued
    }
    return {};
  }
  void issue(Stream& stream, uint64_t, std::vector<CollectiveCall> calls) override {
    state().calls().began(calls.front().record);
    const auto begin = std::chrono::steady_clock::now();
    if (calls.size() == 1) {
      call(stream, calls.front()).wait(stream);
    } else {
      Group group(*inner_);
      for (const CollectiveCall& c : calls) call(stream, c);
      group.end().wait(stream);
    }
    seconds_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state().calls().ended(calls.front().record);
  }
  void wait_for(uint64_t, Stream&) override {}
  std::unique_ptr<Communicator> make_split(Members members) override {
    std::vector<int> ranks;
    for (const int world_rank : members.world_ranks)
      ranks.push_back(static_cast<int>(std::ranges::find(world_ranks(), world_rank) - world_ranks().begin()));
    return make_waited(inner_->split(members.axis, ranks), seconds_);
  }

  std::unique_ptr<Communicator> inner_;
  std::vector<double>& seconds_;
};

}  // namespace

std::unique_ptr<Communicator> make_waited(std::unique_ptr<Communicator> inner, std::vector<double>& seconds) {
  return std::make_unique<WaitedCommunicator>(std::move(inner), seconds);
}

}  // namespace ottava::test
