#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava report RUN... [--output FILE] [--baseline RUN] [--x steps|tokens|hours]`: one HTML page about
/// runs.
struct ReportCommand {
  std::vector<std::string> runs;  ///< dump folders
  std::string output = "report.html";
  std::string baseline;  ///< one of `runs`; empty: the first
  std::string x = "steps";
};
/// Prints to `out` where the page is and what is missing from it. Runs that cannot be read are named on the
/// page. Throws FileError if none or not the baseline can be read, or the page exceeds 25 MB; ConfigError for
/// a baseline that is not one of the runs, or another `x`.
void run_report_command(const ReportCommand& command, std::ostream& out);

void add_report_command(Command& commands);

}  // namespace ottava
