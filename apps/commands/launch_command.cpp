#include "apps/commands/launch_command.h"

#include <charconv>
#include <filesystem>
#include <memory>

#include "apps/commands/command_line.h"
#include "core/device.h"
#include "core/error.h"

namespace ottava {

namespace {

/// Of `all` ranks.
std::vector<int> ranks_in(const std::string& text, int all) {
  std::vector<int> ranks;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    int rank = 0;
    const auto [next, error] = std::from_chars(at, end, rank);
    const bool is_last = next == end;
    if (error != std::errc() || (!is_last && (*next != ',' || next + 1 == end)))
      fail<ConfigError>("launch", "--only-rank is '{}', expected ranks separated by commas, such as 1,3",
                        text);
    if (rank < 0 || rank >= all)
      fail<ConfigError>("launch", "--only-rank is '{}', expected ranks from 0 to {}", text, all - 1);
    ranks.push_back(rank);
    at = is_last ? end : next + 1;
  }
  return ranks;
}

}  // namespace

int run_launch_command(LaunchCommand command) {
  RankLaunch& launch = command.launch;
  if (launch.ranks == 0) launch.ranks = cuda_device_count();
  if (launch.ranks == 0)
    fail<ConfigError>("launch", "no GPU can be used here ({}): set the number of ranks with -n",
                      cuda_unavailable_reason());
  if (launch.machine >= launch.machines)
    fail<ConfigError>("launch", "--node-rank is {}, expected 0 to {} (--nnodes is {})", launch.machine,
                      launch.machines - 1, launch.machines);
  if (launch.machines > 1 && launch.master.port == 0) launch.master.port = Master{}.port;
  launch.only_ranks = ranks_in(command.only_ranks, launch.ranks * launch.machines);
  const std::string& first = launch.arguments.front();
  if (std::filesystem::path(first).filename() == "ottava")
    fail<ConfigError>(
        "launch",
        "what stands after -- is a command of this program, and begins with '{}': leave that out, "
        "as in `ottava launch -n 2 -- train CONFIG`",
        first);
  if (first == "launch")
    fail<ConfigError>("launch",
                      "what stands after -- runs on each rank, and each would launch ranks of its own: leave "
                      "this second launch out");
  launch.arguments.insert(launch.arguments.begin(), "ottava");
  return launch_ranks(launch);
}

void add_launch_command(Command& commands) {
  constexpr int kMostRanks = 4096, kMostMachines = 1 << 16, kMostGrace = 86400;
  auto o = std::make_shared<LaunchCommand>();
  commands
      .subcommand("launch",
                  "run a command on several ranks on one machine or many, without MPI, for example: launch "
                  "-n 8 -- train CONFIG")
      .option("-n,--nproc-per-node", o->launch.ranks,
              "number of ranks on this machine; 0: one for each of its GPUs")
      .within(0, kMostRanks)
      .option("--nnodes", o->launch.machines, "number of machines; start `ottava launch` on each of them")
      .within(1, kMostMachines)
      .option("--node-rank", o->launch.machine, "index of this machine, starting at 0")
      .within(0, kMostMachines - 1)
      .option("--master-addr", o->launch.master.address,
              "name or address (IPv4 or IPv6) of machine 0 that all machines can reach")
      .option("--master-port", o->launch.master.port,
              "port on machine 0; 0: a free port, or 29500 with several machines")
      .within(0, 65535)
      .option(
          "--only-rank", o->only_ranks,
          "show only the output of these ranks, such as 1,3; that of a single rank is shown without a label")
      .option("--tee", o->launch.tee_folder, "also add the output of each rank r to FOLDER/rank-r.log")
      .option("--grace", o->launch.grace_seconds,
              "seconds that the other ranks get to end after one has failed")
      .within(0, kMostGrace)
      .rest(o->launch.arguments)
      .notes(
          "SIGTERM, SIGUSR1, SIGHUP and Ctrl-C are passed to every rank once: `train` then finishes its "
          "step, saves a checkpoint and ends with exit code 0; before the first step there is nothing to "
          "save. A second Ctrl-C ends the ranks at once; so does a second SIGTERM, once it was said, 30 s "
          "after the first, which ranks are left. When a rank fails, its exit code is returned. "
          "LOG_RANK=0,3 selects the ranks whose log lines below warnings are shown (default: 0).")
      .run([o] { return run_launch_command(*o); });
}

}  // namespace ottava
