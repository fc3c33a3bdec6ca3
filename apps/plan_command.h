#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

/// `ottava plan CONFIG [--world-size N]`: memory, compute and traffic per rank of a training step, without
/// its devices.
struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 0;  ///< 0: the fewest ranks that the configuration's degrees make
};
void run_plan_command(const PlanCommand& command, std::ostream& out);

}  // namespace ottava
