#include "apps/commands/config_command.h"

#include <iostream>

#include "apps/commands/command_line.h"
#include "apps/config/config.h"
#include "apps/config/resolved_model.h"
#include "core/error.h"

namespace ottava {

void run_config_command(const ConfigCommand& command, std::ostream& out, std::ostream& notes) {
  if (command.print == ConfigCommand::Print::schema) {
    out << config_schema();
    return;
  }
  if (command.print == ConfigCommand::Print::fates) {
    out << config_fates();
    return;
  }
  Config config = load_config(command.file, command.overrides);
  for (const std::string& note : config.provenance.notes) notes << note << '\n';
  out << print_config(config, command.print == ConfigCommand::Print::explained_tree);
  try {
    std::vector<ModelValue> values;
    resolved_model(config, Tokenizer::load(find_assets(config)).get(), &values);
    out << "\n# The model that this resolves to:\n";
    for (const std::string& line : model_lines(config, values)) out << "#   " << line << '\n';
  } catch (const FileError& error) {
    notes << "The model is not resolved: " << error.what() << '\n';
  }
}

void add_config_command(CLI::App& app) {
  using Print = ConfigCommand::Print;
  auto options = std::make_shared<ConfigCommand>();
  CLI::App* command = add_experiment_command(app, "config", "print the resolved configuration", options->file,
                                             options->overrides);
  add_flag_for(*command, "--comments", options->print, Print::explained_tree, "explain every key");
  add_flag_for(*command, "--fates", options->print, Print::fates,
               "print what becomes of every key, also those of other trainers");
  add_flag_for(*command, "--schema", options->print, Print::schema, "print the JSON schema, for editors");
  command->callback([options] { run_config_command(*options, std::cout, std::cerr); });
}

}  // namespace ottava
