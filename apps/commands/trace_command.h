#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava trace FOLDER [--merge FILE]`: where the time of traced steps went, by rank.
struct TraceCommand {
  std::string folder;  ///< an iteration_N of profiling.save_traces_folder
  std::string merged;  ///< all ranks in one file, `.gz` packed; empty: none
};
/// A line per rank, by rank. Throws FileError where the folder has no trace of ours or one cannot be read.
void run_trace_command(const TraceCommand& command, std::ostream& out);

void add_trace_command(Command& commands);

}  // namespace ottava
