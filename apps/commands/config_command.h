#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace ottava {

class Command;

/// `ottava config [CONFIG] [--schema | --fates | --comments] [--section.key value ...]`: prints the resolved
/// tree as YAML (loading it gives the same configuration), the JSON schema, or what becomes of every key.
struct ConfigCommand {
  enum class Print { tree, explained_tree, schema, fates };

  std::string file;  ///< may be empty: only defaults and overrides
  std::vector<std::string> overrides;
  Print print = Print::tree;
};

/// The tree is followed by comments: the model that it resolves to, one line for each property with its
/// origin. If files that this needs are missing, a note says so instead.
///
/// Notes about keys go to `notes` (standard error), so that the tree can be redirected to a file. Throws as
/// load_config() does.
void run_config_command(const ConfigCommand& command, std::ostream& out, std::ostream& notes);

void add_config_command(Command& commands);

}  // namespace ottava
