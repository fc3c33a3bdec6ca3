#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/comm_stats.h"
#include "parallel/failure/flight_recorder.h"

namespace ottava {

class StepProfile;

/// Where a rank is in its sequence of calls. Ranks run the same program, so the one with the lowest sequence
/// number is the one for which the others wait.
struct ProgressRecord {
  enum class State : uint8_t { idle, inside, done, silent, closed, failed };
  int rank = 0;
  State state = State::idle;
  bool was_inside = false;  ///< for a rank that is gone: whether it was in the call or past it
  Collective collective = Collective::barrier;
  int64_t step = 0;
  int64_t sequence = 0;  ///< calls this rank has entered, on all communicators
  int64_t elements = 0;  ///< of the whole vector; ranks that disagree about it stop
  std::string axis, label;
  std::string work = {};  ///< of a pipeline, what the rank began last: "micro-batch 3 of stage 1"
};

/// "in all_gather 'layers.2' (axis dp_shard, call 42, step 12)", of a pipeline "(..., step 12, micro-batch 3
/// of stage 1)", "after ...", "before its first call", "gone, last seen in ...", "not answering, last seen
/// after ...".
std::string describe(const ProgressRecord& record);
/// "all_reduce 'layers.0' (axis world, step 4)".
std::string call_text(const ProgressRecord& record);
/// A clause that names the ranks that keep the others waiting: those that are gone, else those behind the
/// others, else those that disagree about the call. `records` are those of all ranks.
std::string blame(const std::vector<ProgressRecord>& records);

/// What all communicators of one rank share: step and sequence number, byte counters, time limit, and the
/// first failure, after which every call throws. Safe to use from several threads, except stats(), which only
/// the rank's own thread uses.
class RankState {
 public:
  RankState(int rank, int world_size) : rank_(rank), world_size_(world_size) { record_.rank = rank; }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  CommStats& stats() { return stats_; }
  FlightRecorder& calls() { return calls_; }
  /// Where the rank's own thread, and no other, records its waits for calls; null while nothing is traced.
  StepProfile* profile() const { return profile_; }
  void set_profile(StepProfile* profile) { profile_ = profile; }

  /// Shown in messages and in the ledger.
  void set_step(int64_t step);
  int64_t step() const;
  /// Seconds without progress inside a call after which it fails: `comm.init_timeout_seconds` until the first
  /// step is done, `comm.train_timeout_seconds` afterwards. Progress means bytes sent or received over TCP,
  /// whole messages (of at most 64 MiB) over MPI, whole calls over NCCL.
  void set_timeout_seconds(double seconds) { timeout_seconds_ = seconds; }
  double timeout_seconds() const { return timeout_seconds_; }

  /// Called by transports whenever something has moved.
  void note_progress() { ++progress_count_; }
  uint64_t progress_count() const { return progress_count_; }

  /// Says what the calls from now on are made for: ProgressRecord::work.
  void set_work(std::string work);
  std::string work() const;
  /// Called by transports when a call starts and ends. `work`: work() when the call was made.
  void enter(Collective collective, std::string_view axis, std::string_view label, int64_t calls = 1,
             int64_t elements = 0, std::string_view work = {});
  void leave();
  ProgressRecord progress() const;
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
  int rank_, world_size_;
  CommStats stats_;
  FlightRecorder calls_;
  StepProfile* profile_ = nullptr;
  std::atomic<double> timeout_seconds_ = 300;
  std::atomic<bool> failed_ = false;
  std::atomic<int> waiters_ = 0;
  std::atomic<uint64_t> progress_count_ = 0;
  mutable std::mutex mutex_;
  ProgressRecord record_;
  std::string work_, failure_;
  std::vector<std::function<void(const std::string&)>> hooks_;
  std::function<std::string()> explain_;
};

}  // namespace ottava
