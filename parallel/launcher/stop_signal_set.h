#pragma once

#include <csignal>

namespace ottava {

/// SIGTERM, SIGUSR1 and SIGINT: a rank that gets one of them saves after the step it is in and ends.
inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) sigaddset(&set, signal);
  return set;
}

}  // namespace ottava
