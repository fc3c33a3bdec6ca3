#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "apps/predict/planned_machine.h"

namespace ottava {

class Command;

/// `ottava plan CONFIG`: prints a training step's memory, compute, traffic and time per rank, and whether it
/// fits, without needing its devices; or the fastest layouts that fit.
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
  std::string trace;  ///< file for the predicted step as a trace, compressed if it ends in `.gz`; empty: none
};
/// What memory decides in a run is decided by the memory of the planned device (decided_by_memory()); of a
/// GPU that no table has, and without machine.limit_gib, it is left open. Also prints the step of each
/// outcome of these decisions and of those that are left to the start of the run (open_decisions()). Throws
/// as plan_experiment() does, ConfigError for options that do not go together and for what a run on such a
/// device refuses at its start, and FileError for files that cannot be read or written.
void run_plan_command(const PlanCommand& command, std::ostream& out);

void add_plan_command(Command& commands);

}  // namespace ottava
