#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "apps/predict/planned_machine.h"

namespace ottava {

class Command;

/// `ottava plan CONFIG`: memory, compute, traffic and time per rank of a training step, without its devices,
/// and whether it fits; or the fastest layouts that do.
struct PlanCommand {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 0;  ///< plan_experiment()
  MachineChoice machine = {};
  enum class Work { step, search };
  Work work = Work::step;
  int top = 0;                     ///< search: layouts to show; 0: ten
  std::vector<std::string> fixed;  ///< search: SearchOptions
  std::string json;                ///< file for programs; empty: none
  std::string trace;               ///< file for the predicted step as a trace, `.gz` packed; empty: none
};
/// Also the step of each outcome of what the run decides where it starts (open_decisions()).
void run_plan_command(const PlanCommand& command, std::ostream& out);

void add_plan_command(Command& commands);

}  // namespace ottava
