#pragma once

#include <atomic>
#include <thread>

namespace ottava {

/// Takes SIGTERM, SIGUSR1 and SIGINT while it lives: they are blocked in every thread made after it, and one
/// thread waits for them and sets a flag that the training loop reads between steps. A second SIGINT ends the
/// program at once.
/// Make it before any other thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  /// The signal that asked to stop, 0 if none.
  int received() const { return received_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> received_ = 0;
  std::thread thread_;
};

}  // namespace ottava
