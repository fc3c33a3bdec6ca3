#pragma once

#include <time.h>

namespace ottava {

/// Seconds for which the calling thread, or all threads of this process, have run on a processor since it was
/// made: user and system, whatever else the machine does meanwhile.
class ProcessorWatch {
 public:
  enum class Of { thread, process };
  explicit ProcessorWatch(Of of)
      : clock_(of == Of::thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID), begin_(now()) {}
  double seconds() const { return now() - begin_; }

 private:
  double now() const {
    timespec time{};
    ::clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  clockid_t clock_;
  double begin_;
};

}  // namespace ottava
