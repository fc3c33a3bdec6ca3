#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "core/stream.h"
#include "core/trace/step_profile.h"
#include "parallel/calls/waited_time.h"
#include "parallel/comm/communicator.h"

namespace ottava::nccl {

/// A call that may have failed because another rank is gone, or the network to it: NCCL does not say which.
struct LostPeer : CommError {
  using CommError::CommError;
};

/// Throws LostPeer for ncclRemoteError, ncclSystemError and ncclInternalError, and CommError for all else but
/// success and ncclInProgress.
void check(ncclResult_t result, const char* call);

/// A handle that is shared by communicators with the same members. NCCL takes one thread at a time for it,
/// and none once an abort has begun.
struct Handle {
  std::mutex use;  ///< held while `comm` is used, and for `aborted`
  ncclComm_t comm = nullptr;
  bool aborted = false;
  std::set<int> peers;  ///< to which messages can go, as far as that was asked for; of the rank's own thread
};

/// Keeps a handle for ever, of a communicator that the rank no longer waits for: NCCL's thread may still
/// store it there.
void give_up(std::shared_ptr<Handle> handle);

/// What the NCCL communicators of one rank share: a stream for each lane, on which its collectives run in
/// program order, and a thread that watches them. NCCL kernels of two lanes may run at once: each takes a few
/// SMs, and no lane's kernels ever wait for another's. They need not: ranks also end where a GPU carries out
/// one after the other in program order, as NCCL_LAUNCH_ORDER_IMPLICIT has it where SMs do not suffice for
/// all.
///
/// The host never blocks in a collective of connected ranks, so only the watching thread can see one that
/// hangs. After the time limit, an asynchronous NCCL error, or a failure of the rank's state it aborts all
/// handles: kernels end, and whatever waits for the stream returns. What the stream computed is then
/// worthless: check RankState::failed() after synchronizing, before using results, as TrainingEngine
/// does at the end of a step.
class NcclRank {
 public:
  NcclRank(std::shared_ptr<RankState> state, int gpu);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;

  Stream& stream(size_t lane) { return lanes_[lane].stream; }
  const std::shared_ptr<RankState>& shared_state() const { return state_; }
  void* scratch() const { return scratch_; }  ///< 4 bytes on the GPU, for barriers

  /// For as long as it lives, no other thread uses the handle. Throws CommError where it was aborted.
  [[nodiscard]] std::unique_lock<std::mutex> use(Handle& handle) const;

  /// To be called after each NCCL call, since communicators do not block: polls until NCCL has accepted the
  /// call, which for a communicator's first calls is when the other ranks have made theirs. Throws CommError;
  /// `waiting` is what the rank's state shows as under way if that takes more than a moment, and what the
  /// time limit names. Collectives reach their stream from a thread of NCCL's own, possibly after
  /// ncclGroupEnd has returned: only after settle() may anything follow them there, the end of a capture
  /// included. Captures are thread-local, so that thread is free to call CUDA while it adds to them.
  void settle(const std::shared_ptr<Handle>& handle, const char* call, const EnteredCall* waiting = nullptr);
  /// After a LostPeer: waits a few seconds for the ledger, which names the rank that is gone and what it was
  /// doing, and throws its account. Returns if there is none.
  void hear_who_is_gone() const;
  void watch(const std::shared_ptr<Handle>& handle);
  /// Finalizes and destroys the handle or, after a failure, aborts it.
  void release(const std::shared_ptr<Handle>& handle) noexcept;

  struct Issued {
    std::shared_ptr<Event> done;
    EnteredCall call;
    int64_t record = -1;                ///< of the flight recorder
    std::shared_ptr<Event> begun = {};  ///< with `clock`: where the calls begin on the stream
    std::shared_ptr<const DeviceClock> clock = {};
  };
  /// Adds work of a lane, to be watched until it ends. Not for work captured into a CUDA graph, whose events
  /// cannot be queried.
  void issued(size_t lane, Issued work);

 private:
  using Clock = std::chrono::steady_clock;
  void loop();
  struct Lane {
    Stream stream;
    std::deque<Issued> queue = {};
    std::optional<int64_t> front_entered = {};  ///< RankState::enter() of the front
    WaitedTime idle = WaitedTime();             ///< since something ended
  };
  void advance(Lane& lane);
  bool is_late();
  void abort_all();

  std::shared_ptr<RankState> state_;
  int gpu_;
  std::vector<Lane> lanes_;
  void* scratch_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Handle>> handles_;
  bool stopping_ = false, aborted_ = false;
  std::thread thread_;
};

}  // namespace ottava::nccl
