#pragma once

#include <chrono>

namespace ottava {

/// Seconds since it was made, by the steady clock.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

/// Seconds that work() takes.
template <class Work>
double seconds_of(const Work& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

}  // namespace ottava
