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
  notes << notes_text(config);
  out << print_config(config, command.print == ConfigCommand::Print::explained_tree);
  try {
    std::vector<ModelValue> values;
    resolved_model(config, Tokenizer::load(find_assets(config)).get(), &values);
    out << "\n# The model that this resolves to:\n";
    for (const std::string& line : model_lines(config, values)) out << "#   " << line << '\n';
  } catch (const FileError& error) {
    notes << "The model cannot be resolved: " << error.what() << '\n';
  }
}

void add_config_command(Command& commands) {
  using Print = ConfigCommand::Print;
  auto o = std::make_shared<ConfigCommand>();
  commands.experiment("config", "print the resolved configuration", *o)
      .flag("--comments", o->print, Print::explained_tree, "also explain every key in a comment")
      .flag(
          "--fates", o->print, Print::fates,
          "print a table of all keys, including those of other trainers that are ignored, refused or renamed")
      .flag("--schema", o->print, Print::schema, "print the JSON schema of configuration files, for editors")
      .exclusive()
      .run([o] {
        run_config_command(*o, std::cout, std::cerr);
        return 0;
      });
}

}  // namespace ottava
