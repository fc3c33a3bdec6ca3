#include "apps/commands/command_line.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/config/nearest.h"

namespace ottava {

// The file is no option of the parser, which would take the value of a key that it does not know for it.
CLI::App* add_experiment_command(CLI::App& app, const char* name, const char* meaning, std::string& file,
                                 std::vector<std::string>& overrides) {
  CLI::App* command = app.add_subcommand(name, meaning);
  command->allow_extras();
  command->footer(
      "CONFIG, the YAML or TOML file of the experiment, comes first; without one all keys have their "
      "defaults.\n"
      "Every key of the file can be given as --section.key value, for example --training.steps 100;\n"
      "`ottava config --comments` lists them all.");
  command->parse_complete_callback([command, &file, &overrides] {
    overrides = command->remaining();
    if (overrides.empty() || overrides.front().starts_with("-")) return;
    file = overrides.front();
    overrides.erase(overrides.begin());
  });
  return command;
}

std::string command_line_failure(const CLI::App& app, const CLI::Error& error,
                                 const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string path = app.get_name();
  auto word = words.begin();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
    word = std::find(word, words.end(), at->get_name());
    if (word != words.end()) ++word;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  if (names.empty()) return fmt::format("{}; see `{} --help`", error.what(), path);
  if (word == words.end() || word->starts_with('-'))
    return fmt::format("{} needs a subcommand: {}; see `{} --help`", at->get_name(),
                       config::one_of_text(names), path);
  const std::string meant = config::nearest(*word, names);
  return fmt::format("{} has no subcommand '{}': expected {}{}; see `{} --help`", at->get_name(), *word,
                     config::one_of_text(names), meant.empty() ? "" : "; did you mean " + meant + "?", path);
}

}  // namespace ottava
