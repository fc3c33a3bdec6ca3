#pragma once

#include <atomic>
#include <csignal>
#include <thread>

#include "parallel/comm/communicator.h"

namespace ottava {

/// Takes the stop signals (stop_signal_set.h) while it lives: they are blocked in every thread made after it,
/// and one thread waits for them and sets a flag that the training loop reads between steps. A signal that
/// arrived earlier, while they were blocked, counts too. A second SIGINT from the same sender ends the
/// program at once; one that a launcher (the parent process) passes on beside the one that the whole process
/// group got is not a second. What it logs, at once, has the rank of the thread that made it
/// (log::set_rank()). The destructor restores the signal mask. Make it before any other thread.
class StopSignals {
 public:
  /// Throws Error if the system blocks no signals.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  /// The signal that asked to stop, 0 if none.
  int received() const { return received_.load(std::memory_order_relaxed); }

 private:
  sigset_t before_;
  std::atomic<int> received_ = 0;
  std::atomic<bool> is_ending_ = false;
  std::thread thread_;
};

/// Whether this rank was asked to stop. `signals` null: it never is.
inline bool is_signalled(const StopSignals* signals) { return signals && signals->received() != 0; }
/// Whether any rank was. All ranks call it.
bool is_stop_asked(const StopSignals* signals, Communicator& ranks);

}  // namespace ottava
