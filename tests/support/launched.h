#pragma once

#include <functional>
#include <string>

namespace ottava::test {

/// How a program ended.
struct Outcome {
  std::string output;  ///< stdout and stderr
  int exit_code = 0;   ///< 128 + signal where one ended it
  double seconds = 0;
  /// True when the launcher's account of each of `ranks` ranks ends with the same text, which contains
  /// `text`.
  bool all_say(int ranks, const std::string& text) const;
};

/// Runs a shell command; `meanwhile`, if given, runs beside it with the process group's id.
Outcome run_command(const std::string& command, const std::function<void(int group)>& meanwhile = {});

/// Process id of a rank whose command line contains `token`, or 0. mpirun's own processes are none.
int process_of_rank(const std::string& token, int rank);
/// Processes whose command line contains `token`; the dead have none.
int processes_with(const std::string& token);
/// Asks every millisecond; false when `seconds` have passed.
bool wait_until(double seconds, const std::function<bool()>& condition);

}  // namespace ottava::test
