#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "parallel/calls/rank_state.h"

namespace ottava {

/// The communication thread of one rank. It carries out the jobs of all the rank's communicators in the order
/// given. So jobs overlap with compute and keep program order, and a transport is only ever called from this
/// thread. An error in a job fails the rank's state; later jobs are dropped.
class CommThread {
 public:
  /// Counts the jobs of one communicator that are done.
  struct Counter {
    std::atomic<uint64_t> done = 0;     ///< carried out
    std::atomic<uint64_t> settled = 0;  ///< carried out or dropped: their buffers are free
  };

  explicit CommThread(std::shared_ptr<RankState> state);
  /// Carries out what is queued (or drops it after a failure), then ends the thread.
  ~CommThread();

  void submit(std::shared_ptr<Counter> counter, std::function<void()> job);
  /// Blocks until `counter` has reached `ticket`; throws CommError if the rank failed first. As a backstop
  /// behind the transports' own time limit, also throws if no job at all ended and nothing moved for that
  /// limit plus ten seconds.
  void wait(const Counter& counter, uint64_t ticket);
  /// Blocks until all jobs up to `ticket` are done or dropped, so that their buffers are free. Never throws.
  void settle(const Counter& counter, uint64_t ticket) noexcept;
  /// The same for all jobs, after the rank has failed. Does not wait for a transport that takes longer than
  /// ten seconds to notice.
  void settle_all() noexcept;

 private:
  struct Job {
    std::shared_ptr<Counter> counter;
    std::function<void()> run;
  };
  // Shared with the failure hook, which may outlive this object.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> queue;
    uint64_t submitted = 0, ended = 0;
    bool stopping = false;
  };
  void loop();

  std::shared_ptr<RankState> state_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace ottava
