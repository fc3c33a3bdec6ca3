#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava trace FOLDER [--merge FILE]`: prints where the time of traced steps went, by rank.
struct TraceCommand {
  std::string folder;  ///< an iteration_N of profiling.save_traces_folder
  std::string merged;  ///< file for all ranks' traces together, compressed if it ends in `.gz`; empty: none
};
/// Prints one line per rank, in order; ranks whose files are of an earlier run are left out. Throws FileError
/// if the folder has no trace of ottava or one cannot be read.
void run_trace_command(const TraceCommand& command, std::ostream& out);

void add_trace_command(Command& commands);

}  // namespace ottava
