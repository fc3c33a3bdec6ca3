#pragma once

#include <csignal>

namespace ottava {

/// The signals on which a rank saves after its current step and ends: SIGTERM, SIGUSR1, SIGINT and, unless
/// this process ignores it (nohup), SIGHUP, which is sent when the terminal is closed.
inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) sigaddset(&set, signal);
  struct sigaction hangup = {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace ottava
