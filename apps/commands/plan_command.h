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
  int world_size = 0, compute_capability = 0;  ///< plan_experiment()
};
/// Also the step of each outcome of what the run decides where it starts (open_decisions()).
void run_plan_command(const PlanCommand& command, std::ostream& out);

void add_plan_command(Command& commands);

}  // namespace ottava
