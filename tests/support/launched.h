#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ottava::test {

/// How a program ended.
struct Outcome {
  /// stdout and stderr; of more than 64 KiB only the beginning and the end, with a line between that says so.
  std::string output;
  int exit_code = 0;       ///< 128 + signal where one ended it
  bool timed_out = false;  ///< killed by run_command
  double seconds = 0;
  /// By rank, what the launcher says in the end of each that failed.
  std::map<int, std::string> accounts() const;
  /// True when the account of each of `ranks` ranks ends with the same text, which contains `text`.
  bool all_say(int ranks, const std::string& text) const;
};

/// Runs a shell command. `meanwhile`, if given, runs beside it with the id of the process group, which is the
/// shell's or that of the program it executes (`exec`). A command that has not ended after 240 s counts as
/// hung and is killed with all that it started.
Outcome run_command(const std::string& command, const std::function<void(int group)>& meanwhile = {});

/// Process id of a rank of `ottava launch` whose command line contains `token`, or 0.
int process_of_rank(const std::string& token, int rank);
/// Ids of the processes whose command line contains `token`; dead ones have no command line.
std::vector<int> processes_with(const std::string& token);
/// Asks every 5 milliseconds until the condition holds; false when `seconds` have passed.
bool wait_until(double seconds, const std::function<bool()>& condition);

}  // namespace ottava::test
