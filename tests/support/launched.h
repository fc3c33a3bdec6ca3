#pragma once

#include <functional>
#include <string>

namespace ottava::test {

/// How a program ended.
struct Outcome {
  /// stdout and stderr; of more than 64 KiB the beginning and the end, with a line between that says so.
  std::string output;
  int exit_code = 0;       ///< 128 + signal where one ended it
  bool timed_out = false;  ///< killed by run_command
  double seconds = 0;
  /// True when the launcher's account of each of `ranks` ranks ends with the same text, which contains
  /// `text`.
  bool all_say(int ranks, const std::string& text) const;
};

/// Runs a shell command; `meanwhile`, if given, runs beside it with the process group's id. A command that
/// has not ended after 240 s is killed with all that it started: it hangs.
Outcome run_command(const std::string& command, const std::function<void(int group)>& meanwhile = {});

/// Process id of a rank whose command line contains `token`, or 0. mpirun's own processes are none.
int process_of_rank(const std::string& token, int rank);
/// Processes whose command line contains `token`; the dead have none.
int processes_with(const std::string& token);
/// Asks every 5 milliseconds; false when `seconds` have passed.
bool wait_until(double seconds, const std::function<bool()>& condition);

}  // namespace ottava::test
