#include "apps/commands/help_text.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/terminal.h"
#include "core/text/split.h"

namespace ottava {
namespace {

using Options = std::vector<const CLI::Option*>;

constexpr size_t kColumn = 30;  // where explanations begin

/// Text that begins in column `indent`, its further lines too, none of which is longer than a terminal's if
/// that is where it goes. Where words are put on lines otherwise, programs that read the help would have to
/// join them.
std::string fitted(std::string_view text, size_t indent) {
  constexpr size_t kLeast = 24;  // of a line; below, nothing is gained
  static const size_t columns = terminal_columns(STDOUT_FILENO);
  const size_t room = columns == std::string::npos || columns < indent + kLeast ? columns : columns - indent;
  std::string out;
  for (const std::string_view line : split_text(text, '\n')) {
    if (!out.empty()) out += "\n" + std::string(indent, ' ');
    size_t used = 0;
    for (const std::string_view word : split_text(line, ' ')) {
      if (used > 0 && used + 1 + word.size() > room) {
        out += "\n" + std::string(indent, ' ');
        used = 0;
      } else if (used > 0) {
        out += ' ', ++used;
      }
      out += word;
      used += word.size();
    }
  }
  return out;
}

/// A name, and what it means beside it or, if the name is long, below it.
std::string entry(const std::string& name, const std::string& meaning) {
  std::string out = fmt::format("  {:<{}}", name, kColumn - 2);
  if (name.size() + 2 >= kColumn) out += "\n" + std::string(kColumn, ' ');
  return out + fitted(meaning, kColumn) + "\n";
}

bool takes_several(const CLI::Option* option) {
  return option->get_expected_max() >= CLI::detail::expected_max_vector_size;
}

// TYPE=DEFAULT ... REQUIRED Excludes: --other
std::string values_of(const CLI::Option* option) {
  std::string out;
  if (option->get_type_size() != 0) {
    if (!option->get_type_name().empty()) out += " " + option->get_type_name();
    const std::string given = option->get_default_str();
    if (!given.empty() && given != "[]") out += "=" + given;  // "[]": an empty list
    if (takes_several(option)) out += " ...";
    if (option->get_required()) out += " REQUIRED";
  }
  std::vector<std::string> excluded;  // the parser has them by address
  for (const CLI::Option* other : option->get_excludes()) excluded.push_back(other->get_name());
  std::ranges::sort(excluded);
  if (!excluded.empty()) out += fmt::format(" Excludes: {}", fmt::join(excluded, " "));
  return out;
}

std::string section(const char* title, const Options& options, bool are_positional) {
  if (options.empty()) return {};
  std::string out = fmt::format("\n{}:\n", title);
  for (const CLI::Option* option : options) {
    const std::string name = option->get_name(are_positional, !are_positional);
    out += entry(name + values_of(option), option->get_description());
  }
  return out;
}

std::string usage_of(const CLI::App* command, const Options& positional) {
  std::string out = "[OPTIONS]";
  for (const CLI::Option* option : positional) {
    const std::string name = option->get_name(true, false) + (takes_several(option) ? "..." : "");
    out += option->get_required() ? " " + name : " [" + name + "]";
  }
  if (!command->get_subcommands({}).empty()) out += " SUBCOMMAND";
  return out;
}

class HelpText final : public CLI::FormatterBase {
 public:
  explicit HelpText(std::string usage) : usage_(std::move(usage)) {}

  std::string make_help(const CLI::App* command, std::string path, CLI::AppFormatMode) const override {
    const Options positional = command->get_options([](const CLI::Option*o) { return o->get_positional(); }),
                  named = command->get_options([](const CLI::Option*o) { return o->nonpositional(); });
    std::string out = fmt::format("{}\nUsage: {} {}\n", fitted(command->get_description(), 0), path,
                                  usage_.empty() ? usage_of(command, positional) : usage_);
    out += section("Positionals", positional, true);
    out += section("Options", named, false);
    const std::vector<const CLI::App*> subcommands = command->get_subcommands({});
    if (!subcommands.empty()) out += "\nSubcommands:\n";
    for (const CLI::App* c : subcommands) out += entry(c->get_name(), c->get_description());
    out += "\n";
    if (!command->get_footer().empty()) out += fitted(command->get_footer(), 0) + "\n";
    return out;
  }

 private:
  std::string usage_;
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_text(std::string usage) {
  return std::make_shared<HelpText>(std::move(usage));
}

}  // namespace ottava
