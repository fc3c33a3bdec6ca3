#pragma once

#include <string>

#include "parallel/launcher/launcher.h"

namespace ottava {

class Command;

/// `ottava launch [-n RANKS] -- COMMAND ...`: runs a command of this program on the ranks of this machine.
struct LaunchCommand {
  RankLaunch launch{.ranks = 0};  ///< 0 ranks: one for each GPU of this machine; arguments: the command's
  std::string only_ranks;         ///< launch.only_ranks as text: "1,3"
};
/// Returns the exit code (launcher.h). The stop signals must be blocked. Throws ConfigError.
int run_launch_command(LaunchCommand command);

void add_launch_command(Command& commands);

}  // namespace ottava
