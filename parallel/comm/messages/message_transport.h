#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/messages/exchange.h"

namespace ottava {

/// The collectives of one group of ranks over host memory, built from messages. Used by the rank's
/// communication thread only. Groups need no MPI communicator of their own: all ranks carry out their calls
/// in program order, so messages between two ranks match in order. Tags only tell calls apart, so that ranks
/// which disagree stop instead of mixing data.
class MessageTransport {
 public:
  struct Group {
    std::string axis;
    std::vector<int> world_ranks;
    int rank = 0;
    int ordinal = 0;  ///< tells apart several groups of the same name and members
  };
  /// `workspace_bytes`: size of one half of the pipeline of reductions, shared by up to 64 peers.
  MessageTransport(std::shared_ptr<MessagePort> port, std::shared_ptr<RankState> state, Group group,
                   int64_t workspace_bytes);

  std::string_view name() const { return port_->name(); }
  /// Carries out one transaction and returns when its buffers are free. Throws CommError.
  void run(std::span<const CollectiveCall> calls);
  /// The transport among some of these ranks. Does not communicate.
  std::unique_ptr<MessageTransport> split(Group group) const;

 private:
  /// One piece of a reduction, small enough for the workspace: elements [begin, end) of every rank's block.
  struct Segment {
    const CollectiveCall* call;
    int64_t begin, end;
  };
  std::vector<Segment> segments_of(std::span<const CollectiveCall> calls) const;
  void post(const Segment& segment, char* workspace, Exchange& exchange);
  void add_up(const Segment& segment, char* workspace);
  void exchange_small(std::span<const CollectiveCall> calls);
  void reduce_all(std::span<const CollectiveCall> calls);
  void post_moves(std::span<const CollectiveCall> calls);
  void barrier(const CollectiveCall& call);

  int size() const { return static_cast<int>(group_.world_ranks.size()); }
  int world(int rank) const { return group_.world_ranks[rank]; }
  int peer(int distance) const { return (group_.rank + distance) % size(); }
  int tag(const CollectiveCall& call) const;
  bool is_small(const CollectiveCall& call) const;

  std::shared_ptr<MessagePort> port_;
  std::shared_ptr<RankState> state_;
  Group group_;
  int64_t workspace_bytes_ = 0, segment_bytes_ = 0;
  uint32_t group_hash_ = 2166136261u;
  uint64_t sequence_ = 0;
  Exchange moves_, even_, odd_;
  std::vector<char> workspace_[2], small_;
  std::vector<const void*> inputs_;
};

}  // namespace ottava
