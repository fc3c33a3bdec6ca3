#include "apps/commands/config_command.h"

#include "apps/config/config.h"

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
}

}  // namespace ottava
