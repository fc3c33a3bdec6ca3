#pragma once

#include <functional>
#include <future>
#include <string>
#include <utility>

namespace ottava {

/// Work beside training, one piece at a time, each in a thread of its own, which logs as the rank of
/// the thread that starts it. If the system allows no more threads, start() does the work itself and, the
/// first time, says so.
class BackgroundWork {
 public:
  /// `what` is what training waits for then: "the trace".
  explicit BackgroundWork(std::string what) : what_(std::move(what)) {}
  /// Waits for the work.
  ~BackgroundWork() { wait(); }
  BackgroundWork(const BackgroundWork&) = delete;

  /// Waits for the piece before. `work` must not throw.
  void start(std::function<void()> work);
  bool is_busy() const;
  void wait() const;

 private:
  std::string what_;
  bool has_warned_ = false;
  std::future<void> running_;
};

}  // namespace ottava
