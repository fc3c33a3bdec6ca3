#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/calls/comm_stats.h"
#include "parallel/calls/flight_recorder.h"
#include "parallel/calls/message_counts.h"
#include "parallel/calls/progress_record.h"

namespace ottava {

class StepProfile;

/// What all communicators of one rank share: step and sequence number, byte counters, time limit, and the
/// first failure, after which every call throws. Safe to use from several threads, except stats(), which only
/// the rank's own thread uses.
class RankState {
 public:
  using Clock = std::chrono::steady_clock;

  RankState(int rank, int world_size) : rank_(rank), world_size_(world_size) { record_.rank = rank; }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  CommStats& stats() { return stats_; }
  FlightRecorder& calls() { return calls_; }
  /// Kept by transports that send messages.
  MessageCounts& messages() { return messages_; }
  /// Where the rank's own thread, and no other, records its waits for calls; null while nothing is traced.
  StepProfile* profile() const { return profile_; }
  void set_profile(StepProfile* profile) { profile_ = profile; }

  /// Shown in messages and in the ledger.
  void set_step(int64_t step);
  int64_t step() const;
  /// Seconds without progress inside a call after which it fails: `comm.init_timeout_seconds` until the first
  /// step is done, `comm.train_timeout_seconds` afterwards. Progress means bytes sent or received over TCP,
  /// whole messages (of at most 64 MiB) over MPI, whole calls, or graphs of them, over NCCL. Time for which
  /// the process is stopped does not count (waited_time.h).
  void set_timeout_seconds(double seconds) { timeout_seconds_ = seconds; }
  double timeout_seconds() const { return timeout_seconds_; }

  /// Called by transports whenever something has moved.
  void note_progress() { ++progress_count_; }
  uint64_t progress_count() const { return progress_count_; }

  /// Says what the calls from now on are made for: EnteredCall::work.
  void set_work(std::string work);
  std::string work() const;
  /// The number of a new communicator, equal on all its ranks: made of its axis and world ranks and of how
  /// many like it the rank has made before.
  uint32_t add_group(std::string_view axis, const std::vector<int>& world_ranks);
  /// Called by transports when a call starts and ends; several may be under way. enter() returns the call's
  /// sequence number, which leave() takes.
  int64_t enter(EnteredCall call, Clock::time_point since = Clock::now());
  void leave(int64_t sequence);
  /// In place of leave() where the call is still to be entered.
  void withdraw(int64_t sequence);
  ProgressRecord progress() const;
  /// The same with the counts of messages: for a roll call.
  ProgressRecord progress_with_messages() const;
  /// True while the rank's own thread waits for a call. A transport then polls eagerly; otherwise it leaves
  /// the core to compute.
  bool is_awaited() const { return waiters_ > 0; }
  void add_waiter(int change) { waiters_ += change; }

  /// Records why this rank must stop, as the whole message of the CommError. Only the first reason counts; it
  /// is handed to the hooks (which wake waiting threads and tell the other ranks) on the calling thread.
  void fail(const std::string& reason);
  bool failed() const { return failed_; }
  std::string failure() const;
  void on_failure(std::function<void(const std::string&)> hook);
  /// The function that asks the rank's ledger which ranks are missing; set once the rank is connected.
  void set_explanation(std::function<std::string()> explain);
  std::string explain() const;
  /// The message of a call that made no progress: names the call, then explain().
  std::string timeout_message() const;

 private:
  struct UnderWay {
    Clock::time_point since;
    EnteredCall call;
  };
  EnteredCall take(int64_t sequence);

  int rank_, world_size_;
  CommStats stats_;
  FlightRecorder calls_;
  MessageCounts messages_;
  StepProfile* profile_ = nullptr;
  std::atomic<double> timeout_seconds_ = 300;
  std::atomic<bool> failed_ = false;
  std::atomic<int> waiters_ = 0;
  std::atomic<uint64_t> progress_count_ = 0;
  mutable std::mutex mutex_;
  ProgressRecord record_;          ///< of the last call that has ended
  std::list<UnderWay> under_way_;  ///< the one that began first in front
  int64_t sequence_ = 0;
  std::map<uint32_t, int> groups_;  ///< how many there are of an axis and ranks, by their hash
  std::string work_, failure_;
  std::vector<std::function<void(const std::string&)>> hooks_;
  std::function<std::string()> explain_;
};

}  // namespace ottava
