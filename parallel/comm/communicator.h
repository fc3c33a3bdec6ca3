#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "parallel/calls/rank_state.h"

namespace ottava {

class Communicator;

/// The end of a call, or of a group of calls. Until then the buffers of the call belong to the communicator.
/// Dropping a Request without waiting is allowed and ends nothing early. Valid as long as its communicator.
class Request {
 public:
  /// A request for which nothing waits.
  Request() = default;
  /// Work put on `stream` after this call sees the result. On `cpu`, and for transports that move GPU tensors
  /// through host memory, it blocks the host; under NCCL the stream waits, not the host. Throws CommError if
  /// the call failed, a peer stopped, or nothing moved within the time limit; not for a call that was
  /// complete before another rank failed, except under NCCL.
  void wait(Stream& stream) const;

 private:
  friend class Communicator;
  Request(Communicator* owner, uint64_t ticket, int64_t record = -1)
      : owner_(owner), ticket_(ticket), record_(record) {}
  explicit Request(int32_t recorded) : recorded_(recorded) {}
  Communicator* owner_ = nullptr;
  uint64_t ticket_ = 0;
  int64_t record_ = -1;    ///< the flight recorder's id of the call; a member of a group has none
  int32_t recorded_ = -1;  ///< CostRecorder::issue() of a call on `meta`
};

enum class ReduceOp : uint8_t { sum, max };

// Arguments of the calls. Tensors are contiguous; only their element counts matter, not their shapes. `label`
// names the tensor or unit in errors, in the ledger and in the byte counters.

/// recv = op over ranks of send. In place if recv is left out or is send itself; otherwise recv must be
/// disjoint from send.
struct AllReduce {
  Tensor send, recv;
  ReduceOp op = ReduceOp::sum;
  std::string_view label;
};
/// recv = block rank() of (op over ranks of send). send holds size() blocks in rank order, each of
/// recv.numel() elements. May be in place: recv is then block rank() of send.
struct ReduceScatter {
  Tensor send, recv;
  ReduceOp op = ReduceOp::sum;
  std::string_view label;
};
/// recv = the blocks of all ranks in rank order, each of send.numel() elements. May be in place: send is then
/// block rank() of recv.
struct AllGather {
  Tensor send, recv;
  std::string_view label;
};
/// Block r of send goes to rank r and becomes block rank() of that rank's recv. All blocks have the same
/// size. Never in place.
struct AllToAll {
  Tensor send, recv;
  std::string_view label;
};
/// May end only when the receiver has the data, so two ranks that send to each other must do so inside a
/// Group.
struct Send {
  Tensor tensor;
  int to = 0;
  std::string_view label;
};
/// The next message from rank `from`; tensor is overwritten.
struct Recv {
  Tensor tensor;
  int from = 0;
  std::string_view label;
};

/// One checked call, as implementations see it.
struct CollectiveCall {
  Collective kind = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  /// recv is always set (equal to send for an in-place all_reduce); for Send and Recv both are the one
  /// tensor.
  Tensor send, recv;
  int peer = 0;  ///< destination or source
  std::string label;
  int ranks = 1;        ///< of the communicator
  int64_t record = -1;  ///< the flight recorder's id of the call or of the group it is in

  /// First element of the rank's block. Blocks of all_reduce differ by one element where the vector does not
  /// split evenly.
  int64_t offset(int rank) const { return elements() * rank / ranks; }
  int64_t count(int rank) const { return offset(rank + 1) - offset(rank); }  ///< elements of the rank's block
  int64_t elements() const;  ///< of the whole vector: the same on all ranks
};

/// Collectives among an ordered set of ranks, one object per rank and mesh axis. All ranks of the set make
/// the same calls in the same order. A call checks its arguments, is counted in stats() and handed to the
/// transport, and returns; its result may be used after wait(). The calls of all communicators of one rank
/// are carried out in program order; where carries_axes_apart(), only the calls of each lane are (lane.h).
///
/// All ranks receive identical bits. Over MPI and TCP sums are made in rank order, bf16 in f32 (rounded once
/// at the end): bitwise repeatable for any number of threads, and equal over both. NCCL adds in the order of
/// its rings and trees and rounds bf16 at every hop: repeatable only where its algorithm and protocol are
/// pinned. In max, a NaN wins over numbers over MPI and TCP, but not on NCCL: reduce the bits as u32 where
/// that matters.
///
/// Dtypes: sum and max take f32, bf16, f64, i32, u32, i64; calls that only move data take any. On a `meta`
/// stream calls are checked, counted and recorded (core/cost.h) and move nothing. Calls throw ShapeError for
/// arguments that do not fit, and CommError for whatever goes wrong between ranks; after the first CommError
/// every call of every communicator of this rank throws it again.
class Communicator {
 public:
  struct Members {
    std::string axis;
    std::vector<int> world_ranks;
    int rank = 0;
  };
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  /// "world", "dp_shard", ...
  const std::string& axis() const { return axis_; }
  /// World ranks of the members, by rank.
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  Request all_reduce(Stream& stream, const AllReduce& call);
  Request reduce_scatter(Stream& stream, const ReduceScatter& call);
  Request all_gather(Stream& stream, const AllGather& call);
  Request all_to_all(Stream& stream, const AllToAll& call);
  Request send(Stream& stream, const Send& call);
  Request recv(Stream& stream, const Recv& call);
  /// Blocks the host until every rank has made this call and the work on its stream is done.
  void barrier(Stream& stream, std::string_view label);
  /// Takes now what messages between this rank and each of `peers` need, which the first send(), recv() or
  /// all_to_all() would otherwise take: under NCCL 0.47 GB of the GPU for each peer (3.3 GB were seen for an
  /// all_to_all of 8 H100). To be called before the free memory is read. Every rank makes the
  /// call, and names the ranks that name it; blocks under NCCL; throws CommError.
  virtual void connect_pairs(const std::vector<int>& peers) {}

  /// Calls between group_begin() and group_end(), on one stream, are carried out as one transaction. Sends
  /// and receives in it cannot block one another. After an error none of the results may be used. Nothing
  /// starts before group_end(), and waiting for a member before that throws. Prefer the Group object below.
  void group_begin();
  Request group_end();

  /// The communicator of some of these ranks: `ranks` are ranks of this communicator, ascending, this rank
  /// among them. Every rank of this communicator makes the call, in the same order, with its own group. The
  /// result shares counters, order and failure with this communicator. Does not block, except under NCCL.
  std::unique_ptr<Communicator> split(std::string axis, const std::vector<int>& ranks);

  /// Tells the other ranks that this one cannot go on: their calls throw CommError with this reason. Drops
  /// calls of this rank that are under way over MPI or TCP, and waits until none of them uses its buffers,
  /// though at most ten seconds for what a transport has begun. Never throws.
  void abort(const std::string& reason) noexcept;

  RankState& state() const { return *state_; }
  const std::shared_ptr<RankState>& shared_state() const { return state_; }
  CommStats& stats() const { return state_->stats(); }
  /// "mpi", "tcp", "nccl", "dry_run", "solo".
  virtual std::string_view transport() const = 0;
  /// True where calls progress while the rank computes.
  virtual bool overlaps() const = 0;
  /// True where each lane of a rank's communicators (lane.h) has a stream of its own.
  virtual bool carries_axes_apart() const { return false; }
  /// True where calls are nothing but work on a stream, which a CUDA graph can contain.
  virtual bool can_be_recorded() const { return false; }
  /// Says that a graph with `calls` recorded calls of this rank's communicators was launched on `stream`. The
  /// flight recorder keeps the launch as one call; the calls in the graph it cannot see.
  virtual void graph_launched(Stream& stream, std::string_view name, int64_t calls) {}

 protected:
  Communicator(Members members, std::shared_ptr<RankState> state);

  Members members_of(std::string axis, const std::vector<int>& ranks) const;
  /// Calls of this communicator, for RankState::enter().
  EnteredCall entered(const std::vector<CollectiveCall>& calls) const;
  EnteredCall entered(Collective collective, std::string label, int64_t calls = 1) const;

 private:
  friend class Request;
  friend class Group;
  /// Carries out the calls as one transaction, and tells the flight recorder (by calls[0].record) when it
  /// begins and ends. Tickets count up by one.
  virtual void issue(Stream& stream, uint64_t ticket, std::vector<CollectiveCall> calls) = 0;
  virtual void wait_for(uint64_t ticket, Stream& stream) = 0;
  /// True where calls on `stream` go into a graph: they neither begin nor end now.
  virtual bool is_captured(Stream& stream) const { return false; }
  /// After a failure: waits until no call of the rank's communicators uses host memory any more.
  virtual void settle() noexcept {}
  /// Called with two or more ranks.
  virtual std::unique_ptr<Communicator> make_split(Members members) = 0;
  /// Called in place of make_split() when this rank is alone in its group and needs no transport, for
  /// transports in which all ranks must take part in a split.
  virtual void stay_out_of_split() {}

  Request submit(Stream& stream, CollectiveCall call, std::string_view label);
  /// Counts the calls and hands them over as one transaction.
  Request carry_out(Stream& stream, std::vector<CollectiveCall> calls);
  CommStats::Entry entry_of(const CollectiveCall& call) const;

  std::string axis_;
  std::vector<int> world_ranks_;
  int rank_ = 0;
  std::shared_ptr<RankState> state_;
  uint32_t group_ = 0;  ///< RankState::add_group()
  std::vector<RankRun> runs_;
  uint64_t issued_ = 0;
  bool grouping_ = false;
  Stream* group_stream_ = nullptr;
  std::vector<CollectiveCall> group_calls_;
};

/// A group of calls: `Group group(comm); comm.send(...); comm.recv(...); Request done = group.end();`.
/// Without end(), as after an exception, the calls are dropped unissued.
class Group {
 public:
  explicit Group(Communicator& communicator) : communicator_(communicator) { communicator_.group_begin(); }
  ~Group();
  Group(const Group&) = delete;
  Request end();

 private:
  Communicator& communicator_;
  bool ended_ = false;
};

}  // namespace ottava
