#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava plan CONFIG [--world-size N] [--compute-capability C]`: memory, compute and traffic per rank of a
/// training step, without its devices.
struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 0;  ///< 0: the fewest ranks that the configuration's degrees make
  /// Of the GPUs: 90 for 9.0. 0: of the one in this machine or, where there is none, 90.
  int compute_capability = 0;
};
void run_plan_command(const PlanCommand& command, std::ostream& out);

void add_plan_command(Command& commands);

}  // namespace ottava
