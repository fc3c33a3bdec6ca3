#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace ottava {

/// A command on an experiment: takes a configuration file, which fills `file`, and `--section.key value` for
/// any of its keys, which fill `overrides`, besides the options that are added to it. All three outlive the
/// parsing.
CLI::App* add_experiment_command(CLI::App& app, const char* name, const char* meaning, std::string& file,
                                 std::vector<std::string>& overrides);

/// A flag that sets `target` to `value`.
template <class Value>
void add_flag_for(CLI::App& command, const char* name, Value& target, Value value, const char* meaning) {
  command.add_flag_callback(
      name, [&target, value] { target = value; }, meaning);
}

/// One sentence about a command line that `app` did not take, with what may stand there: the subcommands, or
/// the command whose --help lists its options.
std::string command_line_failure(const CLI::App& app, const CLI::Error& error,
                                 const std::vector<std::string>& words);

}  // namespace ottava
