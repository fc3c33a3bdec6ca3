#include "apps/train/stop_signals.h"

#include <csignal>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace ottava {
namespace {

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) sigaddset(&set, signal);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  sigset_t set = stop_set();
  sigaddset(&set, SIGUSR2);  // wakes the thread when this object goes
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0)
    fail<Error>("signals", "cannot block signals: {}", std::strerror(errno));
  thread_ = std::thread([this, set] {
    for (;;) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0 || signal == SIGUSR2) return;
      if (signal == SIGINT && received() != 0) {
        ::signal(SIGINT, SIG_DFL);
        sigset_t only;
        sigemptyset(&only);
        sigaddset(&only, SIGINT);
        pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
        raise(SIGINT);
      }
      received_.store(signal, std::memory_order_relaxed);
      log::info("received {}: stopping after this step{}", strsignal(signal),
                signal == SIGINT ? " (again to stop at once)" : "");
    }
  });
}

StopSignals::~StopSignals() {
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
  // A launcher may repeat itself while the process is on its way out after a stop: that must not end it with
  // an error.
  if (received() != 0) {
    for (int signal : {SIGTERM, SIGUSR1}) ::signal(signal, SIG_IGN);
  }
  sigset_t set = stop_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace ottava
