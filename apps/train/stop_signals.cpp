#include "apps/train/stop_signals.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "core/threads/start_thread.h"
#include "parallel/comm/agree.h"
#include "parallel/launcher/stop_signal_set.h"

namespace ottava {

StopSignals::StopSignals() {
  sigset_t set = stop_signal_set();
  sigaddset(&set, SIGUSR2);  // wakes the thread when this object goes
  if (pthread_sigmask(SIG_BLOCK, &set, &before_) != 0)
    fail<Error>("signals", "cannot block signals: {}", std::strerror(errno));
  thread_ = start_thread("signals", "takes stop signals", [this, set, view = log::rank_view()] {
    log::set_rank(view);
    int interrupts[2] = {};  // by the launcher, by others
    for (;;) {
      siginfo_t info;
      const int signal = sigwaitinfo(&set, &info);
      if (signal < 0) continue;
      if (signal == SIGUSR2) {  // a scheduler may send it, too
        if (is_ending_.load(std::memory_order_relaxed)) return;
        continue;
      }
      const bool is_passed_on = info.si_code == SI_USER && info.si_pid == ::getppid();
      if (signal == SIGINT && ++interrupts[is_passed_on ? 0 : 1] > 1) {
        ::signal(SIGINT, SIG_DFL);
        sigset_t only;
        sigemptyset(&only);
        sigaddset(&only, SIGINT);
        pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
        raise(SIGINT);
      }
      received_.store(signal, std::memory_order_relaxed);
      log::info("received {}: stopping before the next step{}", strsignal(signal),
                signal == SIGINT ? " (again to stop at once)" : "");
    }
  });
}

StopSignals::~StopSignals() {
  is_ending_.store(true, std::memory_order_relaxed);
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
  // A launcher may repeat the signal while the process is ending after a stop; that must not turn into an
  // error.
  if (received() != 0) {
    for (int signal : {SIGTERM, SIGUSR1, SIGHUP}) ::signal(signal, SIG_IGN);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool is_stop_asked(const StopSignals* signals, Communicator& ranks) {
  double asked = is_signalled(signals) ? 1 : 0;
  reduce_on_host(ranks, view_of(&asked, {1}), "stop");
  return asked > 0;
}

}  // namespace ottava
