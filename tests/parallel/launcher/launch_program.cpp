// Any program on the ranks of this machine, as `ottava launch` starts its own:
//     launch_program RANKS [--address ADDRESS] [--port PORT] [--only RANK] [--tee FOLDER] [--grace SECONDS]
//     [--reader SECONDS] [--notice SECONDS] -- PROGRAM ARGUMENT ...
// The program `listen` is this one: a rank that says which signals it gets, until SIGTERM.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "parallel/launcher/launcher.h"
#include "parallel/launcher/stop_signal_set.h"
#include "parallel/ranks/launch.h"

using namespace ottava;

namespace {

int listen() {
  const Launch launch = detect_launch();
  std::printf("rank %d of %d, %s group\n", launch.rank, launch.world_size,
              ::getpgrp() == ::getpid() ? "its own" : "another's");
  std::fflush(stdout);
  for (const sigset_t set = stop_signal_set();;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) return 1;
    std::printf("got SIG%s\n", ::sigabbrev_np(signal));
    std::fflush(stdout);
    if (signal == SIGTERM) return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const sigset_t set = stop_signal_set();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  if (argc > 1 && std::string(argv[1]) == "listen") return listen();
  RankLaunch launch{.ranks = std::stoi(argv[1])};
  int at = 2;
  for (; std::string(argv[at]) != "--"; at += 2) {
    const std::string name = argv[at], value = argv[at + 1];
    if (name == "--address") launch.master.address = value;
    if (name == "--port") launch.master.port = std::stoi(value);
    if (name == "--only") launch.only_ranks = {std::stoi(value)};
    if (name == "--tee") launch.tee_folder = value;
    if (name == "--grace") launch.grace_seconds = std::stod(value);
    if (name == "--reader") launch.reader_seconds = std::stod(value);
    if (name == "--notice") launch.notice_seconds = std::stod(value);
  }
  launch.arguments.assign(argv + at + 1, argv + argc);
  if (launch.arguments.at(0) != "listen") {
    launch.program = launch.arguments[0];
  } else {
    launch.arguments.insert(launch.arguments.begin(), argv[0]);
  }
  try {
    return launch_ranks(launch);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
