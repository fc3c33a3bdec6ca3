#pragma once

#include <csignal>

namespace ottava {

/// SIGTERM, SIGUSR1, SIGINT and, unless this process ignores it (nohup), SIGHUP, which comes when the
/// terminal is closed: a rank that gets one of them saves after the step it is in and ends.
inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) sigaddset(&set, signal);
  struct sigaction hangup = {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace ottava
