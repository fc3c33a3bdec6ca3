#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "core/counted.h"
#include "parallel/comm/all_ranks.h"

namespace ottava {
namespace {

class DryRunCommunicator final : public Communicator {
 public:
  DryRunCommunicator(Members members, std::shared_ptr<RankState> state)
      : Communicator(std::move(members), std::move(state)) {}
  std::string_view transport() const override { return "dry_run"; }
  bool overlaps() const override { return false; }
  bool carries_axes_apart() const override { return true; }

 private:
  void issue(Stream&, uint64_t, std::vector<CollectiveCall> calls) override {
    state().leave(state().enter(entered(calls)));
  }
  void wait_for(uint64_t, Stream&) override {}
  std::unique_ptr<Communicator> make_split(Members members) override {
    return std::make_unique<DryRunCommunicator>(std::move(members), shared_state());
  }
};

}  // namespace

std::unique_ptr<Communicator> make_dry_run_world(int rank, int world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    fail<ConfigError>("dry_run", "rank {} of {} does not exist", rank, counted(world_size, "rank"));
  }
  return std::make_unique<DryRunCommunicator>(Communicator::Members{"world", all_ranks(world_size), rank},
                                              std::make_shared<RankState>(rank, world_size));
}

}  // namespace ottava
