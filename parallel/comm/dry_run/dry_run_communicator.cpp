#include "parallel/comm/dry_run/dry_run_communicator.h"

#include <utility>
#include <vector>

#include "core/text/counted.h"
#include "parallel/comm/all_ranks.h"
#include "parallel/comm/lane.h"

namespace ottava {
namespace {

class DryRunCommunicator final : public Communicator {
 public:
  /// In that group of the connections, which are null where they are not asked for.
  DryRunCommunicator(Members members, std::shared_ptr<RankState> state,
                     std::shared_ptr<RankConnections> connections, size_t group)
      : Communicator(std::move(members), std::move(state)),
        connections_(std::move(connections)),
        group_(group) {}
  std::string_view transport() const override { return "dry_run"; }
  bool overlaps() const override { return false; }
  bool carries_axes_apart() const override { return true; }
  void connect_pairs(const std::vector<int>& peers) override {
    if (!connections_) return;
    for (int peer : peers)
      if (peer != rank()) connections_->groups[group_].peers.insert(world_ranks()[peer]);
  }

 private:
  void issue(Stream&, uint64_t, std::vector<CollectiveCall> calls) override {
    state().leave(state().enter(entered(calls)));
  }
  void wait_for(uint64_t, Stream&) override {}
  std::unique_ptr<Communicator> make_split(Members members) override {
    ConnectedGroup group{members.world_ranks, lane_of(members.axis)};
    size_t at = group_;
    if (connections_ && group != connections_->groups[group_].of) {
      at = connections_->groups.size();
      connections_->groups.push_back({std::move(group)});
    }
    return std::make_unique<DryRunCommunicator>(std::move(members), shared_state(), connections_, at);
  }

  std::shared_ptr<RankConnections> connections_;
  size_t group_;
};

}  // namespace

std::unique_ptr<Communicator> make_dry_run_world(int rank, int world_size,
                                                 std::shared_ptr<RankConnections> connections) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    fail<ConfigError>("dry_run", "rank {} of {} does not exist", rank, counted(world_size, "rank"));
  }
  Communicator::Members members{"world", all_ranks(world_size), rank};
  if (connections) *connections = {.rank = rank, .groups = {{{members.world_ranks, lane_of(members.axis)}}}};
  return std::make_unique<DryRunCommunicator>(
      std::move(members), std::make_shared<RankState>(rank, world_size), std::move(connections), 0);
}

}  // namespace ottava
