#pragma once

#include <memory>
#include <string>

namespace CLI {
class FormatterBase;
}

namespace ottava {

/// Writes what `--help` prints, alike with every version of the parser, whose own text is another since 2.5:
/// the command's description, its usage, its arguments and options, its subcommands, its notes. `usage`
/// stands behind the command's name where the parser does not know all words of the command; if it is empty,
/// what the parser knows does.
std::shared_ptr<CLI::FormatterBase> help_text(std::string usage = "");

}  // namespace ottava
