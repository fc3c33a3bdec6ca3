#pragma once

#include "parallel/comm/communicator.h"

namespace ottava {

/// A group of one rank: every call is a copy on the caller's stream, or nothing when in place. It serves a
/// single process and mesh axes of size 1, so that the code above never asks whether there are other ranks.
class SoloCommunicator final : public Communicator {
 public:
  SoloCommunicator();
  SoloCommunicator(std::string axis, int world_rank, std::shared_ptr<RankState> state);
  std::string_view transport() const override { return "solo"; }
  bool can_be_recorded() const override { return true; }
  bool overlaps() const override { return false; }

 private:
  void issue(Stream& stream, uint64_t ticket, std::vector<CollectiveCall> calls) override;
  void wait_for(uint64_t ticket, Stream& stream) override {}
  std::unique_ptr<Communicator> make_split(Members members) override;
};

}  // namespace ottava
