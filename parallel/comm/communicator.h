#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "parallel/failure/rank_state.h"

namespace ottava {

class Communicator;

/// The end of a call (or of a group of calls). The buffers of the call belong to the communicator until then;
/// dropping a Request without waiting is allowed and ends nothing early. Valid as long as its communicator.
class Request {
 public:
  /// One that is done.
  Request() = default;
  /// Work put on `stream` after this call sees the result. On `cpu` (and for transports that move GPU tensors
  /// through host memory) blocks the host; under NCCL the stream waits, not the host. Throws CommError when
  /// the call failed, a peer stopped, or nothing moved for the time limit; a call that was complete before
  /// another rank failed does not throw.
  void wait(Stream& stream) const;
  /// True when wait() would not block.
  bool done() const;

 private:
  friend class Communicator;
  Request(Communicator* owner, uint64_t ticket, int64_t record = -1)
      : owner_(owner), ticket_(ticket), record_(record) {}
  explicit Request(int32_t recorded) : recorded_(recorded) {}
  Communicator* owner_ = nullptr;
  uint64_t ticket_ = 0;
  int64_t record_ = -1;    ///< the flight recorder's id of the call; none of a group's member
  int32_t recorded_ = -1;  ///< CostRecorder::issue() of a call on `meta`
};

enum class ReduceOp : uint8_t { sum, max };

// Arguments of the calls. Tensors are contiguous; only their element counts matter, not their shapes. `label`
// names the tensor or unit in errors, in the ledger and in the byte counters.

/// recv = op over ranks of send. `recv` may be left out or be send itself: in place; otherwise disjoint from
/// it.
struct AllReduce {
  Tensor send, recv;
  ReduceOp op = ReduceOp::sum;
  std::string_view label;
};
/// recv = block `rank` of the op over ranks of send. send holds size() blocks in rank order, each of
/// recv.numel() elements. In place: recv == block `rank` of send.
struct ReduceScatter {
  Tensor send, recv;
  ReduceOp op = ReduceOp::sum;
  std::string_view label;
};
/// recv = blocks of all ranks in rank order, each of send.numel() elements. In place: send == block `rank` of
/// recv.
struct AllGather {
  Tensor send, recv;
  std::string_view label;
};
/// Block r of send goes to rank r, whose block `rank` of recv it becomes; equal blocks. Never in place.
struct AllToAll {
  Tensor send, recv;
  std::string_view label;
};
/// May end as late as when the receiver has the data: two ranks that send to each other do so inside a Group.
struct Send {
  Tensor tensor;
  int to = 0;
  std::string_view label;
};
struct Recv {
  Tensor tensor;
  int from = 0;
  std::string_view label;
};

/// One checked call, as implementations see it.
struct CollectiveCall {
  Collective kind = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  /// recv is set (== send for an in-place all_reduce); send and recv: the one tensor
  Tensor send, recv;
  int peer = 0;  ///< destination or source
  std::string label;
  int ranks = 1;        ///< of the communicator
  int64_t record = -1;  ///< the flight recorder's id of the call or of the group it is in

  /// First element of the rank's block; those of all_reduce differ by one where it does not split evenly.
  int64_t offset(int rank) const { return elements() * rank / ranks; }
  int64_t count(int rank) const { return offset(rank + 1) - offset(rank); }  ///< elements of the rank's block
  int64_t elements() const;  ///< of the whole vector: the same on all ranks
};

/// Collectives among an ordered set of ranks, one object per rank and mesh axis. All ranks of the set make
/// the same calls in the same order. Calls check their arguments, are counted in stats(), are handed to the
/// transport and return; the result may be used after wait(). Calls of all communicators of one rank are
/// carried out in program order, but where carries_axes_apart(): there those of each lane are (lane.h).
///
/// Sums are made in rank order, in f32 for bf16 (rounded once at the end), and all ranks receive identical
/// bits: over MPI and TCP bitwise repeatable for any number of threads and equal to each other. NCCL adds in
/// the order of its rings and trees and rounds bf16 at every hop: repeatable where its algorithm and protocol
/// are pinned. A NaN wins over numbers in max over MPI and TCP (not on NCCL: reduce the bits as u32 where
/// that matters).
///
/// Dtypes: sum and max f32, bf16, f64, i32, u32, i64; the calls that only move data take any.
/// On a `meta` stream calls are checked, counted and recorded (core/cost.h) and move nothing.
/// Throws ShapeError for arguments that do not fit, CommError for everything that goes wrong between ranks;
/// after the first CommError every call of every communicator of this rank throws it again.
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
  /// Blocks the host until every rank is here and what it put on its stream is done.
  void barrier(Stream& stream, std::string_view label);

  /// Calls between group_begin and group_end (same stream) are carried out as one transaction: all or, after
  /// an error, none of the results may be used; sends and receives inside cannot block one another. Nothing
  /// starts before group_end, and waiting for a member before it throws. Prefer the Group object below.
  void group_begin();
  Request group_end();

  /// The communicator of some of these ranks: `ranks` are ranks of this communicator, ascending, with this
  /// one among them. Every rank of this communicator makes the call, in the same order, with its own group.
  /// Shares counters, order and failure with this one. Does not block, except under NCCL.
  std::unique_ptr<Communicator> split(std::string axis, const std::vector<int>& ranks);

  /// Tells the other ranks that this one cannot go on: their calls throw CommError with this reason. Calls of
  /// this rank that are on their way over MPI or TCP are dropped, and when it returns none of them uses its
  /// buffers. Never throws.
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
  /// True where calls are only work of the stream, which a CUDA graph can contain.
  virtual bool can_be_recorded() const { return false; }
  /// A graph that contains `calls` recorded calls of this rank's communicators was launched on `stream`.
  virtual void graph_launched(Stream& stream, std::string_view name, int64_t calls) {}

 protected:
  Communicator(Members members, std::shared_ptr<RankState> state);

  Members members_of(std::string axis, const std::vector<int>& ranks) const;

 private:
  friend class Request;
  friend class Group;
  /// Carries out the calls as one transaction and tells the flight recorder, by calls[0].record, when it
  /// begins and ends; tickets count up by one.
  virtual void issue(Stream& stream, uint64_t ticket, std::vector<CollectiveCall> calls) = 0;
  virtual void wait_for(uint64_t ticket, Stream& stream) = 0;
  virtual bool is_done(uint64_t ticket) = 0;
  /// After a failure: returns when no call of the rank's communicators uses host memory any more.
  virtual void settle() noexcept {}
  /// Called with two or more ranks.
  virtual std::unique_ptr<Communicator> make_split(Members members) = 0;
  /// This rank is the only one of its group, which needs no transport; for transports whose splitting takes
  /// all ranks.
  virtual void stay_out_of_split() {}

  Request submit(Stream& stream, CollectiveCall call, std::string_view label);
  /// Counts the calls and hands them over as one transaction.
  Request carry_out(Stream& stream, std::vector<CollectiveCall> calls);
  CommStats::Entry entry_of(const CollectiveCall& call) const;

  std::string axis_;
  std::vector<int> world_ranks_;
  int rank_ = 0;
  std::shared_ptr<RankState> state_;
  uint64_t issued_ = 0;
  bool grouping_ = false;
  Stream* group_stream_ = nullptr;
  std::vector<CollectiveCall> group_calls_;
};

/// Group group(comm); comm.send(...); comm.recv(...); Request done = group.end();
/// Without end() (an exception on the way) the calls are dropped unissued.
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
