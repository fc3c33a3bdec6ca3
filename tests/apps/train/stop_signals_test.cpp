#include "apps/train/stop_signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "core/log.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"

using namespace ottava;

namespace {

bool comes(const StopSignals& signals, int signal) {
  for (int i = 0; i < 3000 && signals.received() != signal; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return signals.received() == signal;
}

/// How a process ends in which `body` runs: the signal that killed it, 0, or less if it threw.
template <class Body>
int killed_by(Body&& body) {
  const int status = test::in_child([&] {
    for (int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP})
      ::signal(signal, SIG_DFL);  // the test library has handlers of its own
    body();
  });
  return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("each of the four signals is noticed, and ends nothing") {
  log::set_level(log::Level::warning);
  for (int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    CHECK(killed_by([&] {
            StopSignals signals;
            if (signals.received() != 0) ::raise(SIGKILL);
            ::kill(::getpid(), signal);
            if (!comes(signals, signal)) ::raise(SIGKILL);
          }) == 0);
  }
}

TEST_CASE(
    "what a signal is answered with has the rank of the thread that listens for it, and is not logged by "
    "quiet ones") {
  const auto answer = [](log::RankView view) {
    const CapturedOutput output;
    CHECK(killed_by([&] {
            log::set_level(log::Level::info);
            log::set_rank(view);
            const StopSignals signals;
            ::kill(::getpid(), SIGTERM);
            if (!comes(signals, SIGTERM)) ::raise(SIGKILL);
          }) == 0);
    return output.text();
  };
  using Catch::Contains;
  CHECK_THAT(answer({.rank = 0, .world_size = 2}),
             Contains(" - INFO - received Terminated: stopping before the next step\n"));
  CHECK_THAT(answer({.rank = 1, .world_size = 2}), Contains(" - INFO - rank 1: received Terminated"));
  CHECK(answer({.rank = 1, .world_size = 2, .quiet = true}).empty());
}

TEST_CASE("a second SIGINT stops at once") {
  CHECK(killed_by([&] {
          StopSignals signals;
          ::kill(::getpid(), SIGINT);
          comes(signals, SIGINT);
          ::kill(::getpid(), SIGINT);
          std::this_thread::sleep_for(std::chrono::seconds(30));
        }) == SIGINT);
}

TEST_CASE("a signal that is repeated after the stop does not kill the process on its way out") {
  auto stop_and_repeat = [](int repeated) {
    return killed_by([&] {
      {
        StopSignals signals;
        ::kill(::getpid(), SIGTERM);
        comes(signals, SIGTERM);
      }
      ::raise(repeated);
    });
  };
  CHECK(stop_and_repeat(SIGTERM) == 0);
  CHECK(stop_and_repeat(SIGUSR1) == 0);
  CHECK(stop_and_repeat(SIGHUP) == 0);
  CHECK(stop_and_repeat(SIGINT) == SIGINT);
  // Where no stop was asked for, signals mean what they always do.
  CHECK(killed_by([] {
          { StopSignals signals; }
          ::raise(SIGTERM);
        }) == SIGTERM);
}

TEST_CASE("a SIGUSR2 of a scheduler leaves the listener listening") {
  CHECK(killed_by([] {
          StopSignals signals;
          ::kill(::getpid(), SIGUSR2);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          ::kill(::getpid(), SIGTERM);
          if (!comes(signals, SIGTERM)) ::raise(SIGKILL);
        }) == 0);
}

TEST_CASE("a later listener hears again") {
  CHECK(killed_by([] {
          for (int i = 0; i < 2; ++i) {
            StopSignals signals;
            ::kill(::getpid(), SIGUSR1);
            if (!comes(signals, SIGUSR1)) ::raise(SIGKILL);
          }
        }) == 0);
}
