#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace ottava {

/// How long something has been waited for, without the time for which this process was stopped meanwhile (a
/// scheduler that suspends the job, SIGSTOP, a closed lid): it adds up what passes from one look to the next,
/// at most so much each, a second if nothing else is said. Whoever waits has to look more often than that.
class WaitedTime {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kMostPerLook{1};

  explicit WaitedTime(Clock::time_point now = Clock::now(), Clock::duration most_per_look = kMostPerLook)
      : most_per_look_(most_per_look), last_(now) {}
  /// Begins anew.
  void restart(Clock::time_point now = Clock::now()) { *this = WaitedTime(now, most_per_look_); }
  /// Looks: the seconds waited until now.
  double seconds(Clock::time_point now = Clock::now()) {
    waited_ += std::min(now - last_, most_per_look_);
    last_ = now;
    return std::chrono::duration<double>(waited_).count();
  }

 private:
  Clock::duration most_per_look_;
  Clock::time_point last_;
  Clock::duration waited_ = {};
};

/// condition.wait_for() by WaitedTime.
template <class Condition>
bool wait_for(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, double seconds,
              const Condition& holds) {
  constexpr double kSlice = 0.25;
  WaitedTime time;
  for (double left = seconds; left > 0; left = seconds - time.seconds())
    if (changed.wait_for(lock, std::chrono::duration<double>(std::min(left, kSlice)), holds)) return true;
  return holds();
}

}  // namespace ottava
