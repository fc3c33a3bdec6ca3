#include "parallel/comm/messages/host_communicator.h"

#include <map>
#include <utility>

#include "parallel/comm/all_ranks.h"
#include "parallel/comm/comm_thread.h"
#include "parallel/comm/host_staging.h"
#include "parallel/comm/messages/message_transport.h"

namespace ottava {
namespace {

// One per rank, shared by the communicators that come from one world.
struct HostRank {
  explicit HostRank(const std::shared_ptr<RankState>& state) : thread(state) {}
  std::map<int, HostStaging> staging;  // by GPU; used by the communication thread
  std::map<std::pair<std::string, std::vector<int>>, int> splits;
  CommThread thread;  // last: ends before what its jobs use
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(Members members, std::shared_ptr<RankState> state,
                   std::unique_ptr<MessageTransport> transport, std::shared_ptr<HostRank> host)
      : Communicator(std::move(members), std::move(state)),
        transport_(std::move(transport)),
        host_(std::move(host)),
        counter_(std::make_shared<CommThread::Counter>()) {}
  ~HostCommunicator() override { host_->thread.settle(*counter_, last_ticket_); }

  std::string_view transport() const override { return transport_->name(); }
  bool overlaps() const override { return true; }

 private:
  void issue(Stream& stream, uint64_t ticket, std::vector<CollectiveCall> calls) override {
    last_ticket_ = ticket;
    EnteredCall entering = entered(calls);
    std::shared_ptr<Event> ready;
    if (stream.type() == DeviceType::cuda) {
      ready = std::make_shared<Event>(stream.device());
      ready->record(stream);
    }
    host_->thread.submit(counter_, [this, ready, gpu = stream.device().index, entering = std::move(entering),
                                    calls = std::move(calls)] {
      const CollectiveCall& first = calls.front();
      state().calls().began(first.record);
      const int64_t sequence = state().enter(entering);
      if (ready) {
        ready->synchronize();
        HostStaging& staging = host_->staging.try_emplace(gpu, gpu).first->second;
        std::vector<CollectiveCall> staged = staging.to_host(calls);
        transport_->run(staged);
        staging.to_device(staged, calls);
      } else {
        transport_->run(calls);
      }
      state().leave(sequence);
      state().calls().ended(first.record);
    });
  }
  void wait_for(uint64_t ticket, Stream&) override { host_->thread.wait(*counter_, ticket); }
  void settle() noexcept override { host_->thread.settle_all(); }
  std::unique_ptr<Communicator> make_split(Members members) override {
    int ordinal = host_->splits[{members.axis, members.world_ranks}]++;
    auto transport = transport_->split({members.axis, members.world_ranks, members.rank, ordinal});
    return std::make_unique<HostCommunicator>(std::move(members), shared_state(), std::move(transport),
                                              host_);
  }

  std::unique_ptr<MessageTransport> transport_;
  std::shared_ptr<HostRank> host_;
  std::shared_ptr<CommThread::Counter> counter_;
  uint64_t last_ticket_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_message_world(std::shared_ptr<MessagePort> port,
                                                 std::shared_ptr<RankState> state, int64_t workspace_bytes) {
  std::vector<int> ranks = all_ranks(state->world_size());
  auto host = std::make_shared<HostRank>(state);
  MessageTransport::Group all{"world", ranks, state->rank()};
  auto transport =
      std::make_unique<MessageTransport>(std::move(port), state, std::move(all), workspace_bytes);
  Communicator::Members members{"world", std::move(ranks), state->rank()};
  return std::make_unique<HostCommunicator>(std::move(members), std::move(state), std::move(transport),
                                            std::move(host));
}

}  // namespace ottava
