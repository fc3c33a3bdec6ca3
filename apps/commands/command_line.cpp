#include "apps/commands/command_line.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "apps/commands/help_text.h"
#include "core/config/nearest.h"
#include "core/contains.h"
#include "core/text/error_text.h"
#include "parallel/ranks/account.h"

namespace ottava {
namespace {

// Behind a word that ends with a bracket or "=": the parser would otherwise take "[a,b]" for a list as the
// two words "a" and "b", and the next word for the value of "--name=".
constexpr char kAsItIs = '\x01';

std::string without_mark(std::string word) {
  if (word.ends_with(kAsItIs)) word.pop_back();
  return word;
}

/// The command that words ask for, and the first of them that is none of its names.
struct Asked {
  const CLI::App* command;
  std::string path;
  size_t rest = 0;
};

Asked asked(const CLI::App* program, const std::vector<std::string>& words) {
  Asked at{program, program->get_name()};
  for (; at.rest < words.size(); ++at.rest) {
    const auto next =
        at.command->get_subcommands([&](const CLI::App* c) { return c->get_name() == words[at.rest]; });
    if (next.empty()) break;
    at.command = next.front();
    at.path += " " + at.command->get_name();
  }
  return at;
}

/// Of "--name=value" and "--name": "--name"; empty where the word is no long option.
std::string option_name(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") ? word.substr(0, word.find('=')) : "";
}

/// --max_tokens as --max-tokens, where the command has that.
std::vector<std::string> with_hyphens(const CLI::App* program, std::vector<std::string> words) {
  const Asked at = asked(program, words);
  for (size_t i = at.rest; i < words.size() && words[i] != "--"; ++i) {
    std::string name = option_name(words[i]);
    const size_t length = name.size();
    std::ranges::replace(name, '_', '-');
    if (at.command->get_option_no_throw(name)) words[i].replace(0, length, name);
  }
  return words;
}

/// The option of a command that was meant by one that it does not have; empty if none is like it.
std::string meant_option(const CLI::App* command, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& long_name : option->get_lnames()) known.push_back(long_name);
  const std::string meant = config::nearest(name.substr(2), known);
  return meant.empty() ? "" : "--" + meant;
}

std::string unknown_text(const std::string& name, const std::string& meant) {
  return fmt::format("unknown option {}{}", name, meant.empty() ? "" : "; did you mean " + meant + "?");
}

/// Of the first word that is no option of the command; empty if all are.
std::string unknown_option(const CLI::App* command, const std::vector<std::string>& words, size_t first) {
  for (size_t i = first; i < words.size() && words[i] != "--"; ++i) {
    const std::string name = option_name(words[i]);
    if (!name.empty() && !command->get_option_no_throw(name))
      return unknown_text(name, meant_option(command, name));
  }
  return "";
}

/// What the parser says, of an option by the name that the command line gives it, and in words of our own
/// where that has the wrong number of values.
std::string parser_text(const CLI::App* command, const CLI::Error& error,
                        const std::vector<std::string>& words) {
  const std::string said = error.what();
  const size_t colon = said.find(": ");
  if (colon == std::string::npos || !command->get_option_no_throw(said.substr(0, colon))) return said;
  std::string name = said.substr(0, colon), rest = said.substr(colon);
  const CLI::Option* const meant = command->get_option_no_throw(name);
  const auto typed = std::ranges::find_if(words, [&](const std::string& word) {
    return command->get_option_no_throw(option_name(word)) == meant;
  });
  if (typed != words.end()) name = option_name(*typed);
  if (error.get_name() != "ArgumentMismatch") return name + rest;
  return name + (said.ends_with(" missing") ? " needs a value" : " is given more than once");
}

/// Returns the exit code.
int say_error(const std::string& text) {
  std::fflush(stdout);
  const std::string line = fmt::format("ottava: {}\n", text);
  if (!tell_launcher(text, line, Printed::to_stderr)) std::fputs(line.c_str(), stderr);
  return 1;
}

/// What is wrong with a command line, and what would be allowed.
std::string failure(const CLI::App* program, const CLI::Error& error, const std::vector<std::string>& words) {
  const auto [at, path, rest] = asked(program, words);
  std::vector<std::string> names;
  for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  const std::string unknown = at->get_allow_extras() ? "" : unknown_option(at, words, rest);
  std::string what = unknown.empty() ? parser_text(at, error, words) : unknown;
  std::erase(what, kAsItIs);
  if (names.empty()) return fmt::format("{}; see `{} --help`", what, path);
  const std::string expected = config::one_of_text(names);
  if (rest == words.size() || words[rest].starts_with('-')) {
    const std::string before = rest == words.size() ? "" : " before " + words[rest];
    return fmt::format("{} needs a subcommand{}: {}; see `{} --help`", at->get_name(), before, expected,
                       path);
  }
  const std::string meant = config::nearest(words[rest], names);
  return fmt::format("{} has no subcommand '{}': expected {}{}; see `{} --help`", at->get_name(), words[rest],
                     expected, meant.empty() ? "" : "; did you mean " + meant + "?", path);
}

/// Of what the target takes; nothing if that is text.
std::optional<GivenNumber> number_for(const Command::Target& target) {
  return std::visit(
      [](auto value) -> std::optional<GivenNumber> {
        using T = typename decltype(value)::type;
        if constexpr (std::is_integral_v<T>) {
          GivenNumber number{.largest_whole = std::numeric_limits<T>::max()};
          if (std::is_unsigned_v<T>) number.least = 0;
          return number;
        }
        if (std::is_same_v<T, std::optional<int64_t>>)
          return GivenNumber{.largest_whole = std::numeric_limits<int64_t>::max()};
        const bool is_number = std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>;
        return is_number ? std::optional(GivenNumber{}) : std::nullopt;
      },
      target);
}

/// The parser's own conversion takes nothing for 0, hexadecimal numbers, nan and inf, -1 for the largest
/// unsigned number, and 010 for 8.
class NumberValidator final : public CLI::Validator {
 public:
  explicit NumberValidator(std::shared_ptr<const GivenNumber> number) {
    desc_function_ = [number] { return number->most ? number->expected() : ""; };
    func_ = [number](std::string& text) {
      const std::string refusal = number->refusal(text);
      if (refusal.empty()) text = number->plain(text);
      return refusal;
    };
  }
};

std::vector<std::string> with_marks(std::vector<std::string> words) {
  for (std::string& word : words)
    if (word.ends_with(']') || word.ends_with('=')) word += kAsItIs;
  return words;
}

}  // namespace

Command Command::subcommand(const char* name, const char* meaning) {
  parser_->require_subcommand(1);
  return {parser_->add_subcommand(name, meaning), line_};
}

// The file is not an option of the parser, which would mistake the value of an unknown key for it.
Command Command::experiment(const char* name, const char* meaning, std::string& file,
                            std::vector<std::string>& overrides) {
  Command command = subcommand(name, meaning);
  CLI::App* parser = command.parser_;
  parser->allow_extras();
  parser->formatter(help_text("[CONFIG] [OPTIONS] [--section.key VALUE ...]"));
  parser->footer(
      "CONFIG is the YAML or TOML file of the experiment and comes first; without it all keys have their "
      "defaults.\nEvery key can also be set as --section.key VALUE, for example --training.steps "
      "100;\n`ottava config --comments` lists and explains all keys.");
  parser->parse_complete_callback([parser, &file, &overrides] {
    overrides.clear();
    for (std::string& word : parser->remaining()) overrides.push_back(without_mark(std::move(word)));
    if (!overrides.empty() && !overrides.front().starts_with("-")) {
      file = overrides.front();
      if (file.empty())  // a variable of a shell that is unset; the defaults would be planned or trained
        throw CLI::ParseError("CONFIG is empty: name a file, or leave it out", CLI::ExitCodes::ExtrasError);
      overrides.erase(overrides.begin());
    }
    // Keys have a dot.
    for (const std::string& word : overrides) {
      const std::string name = option_name(word),
                        meant = name.empty() || contains(name, '.') ? "" : meant_option(parser, name);
      if (!meant.empty()) throw CLI::ParseError(unknown_text(name, meant), CLI::ExitCodes::ExtrasError);
    }
  });
  return command;
}

Command& Command::option(const char* name, Target target, const char* meaning) {
  CLI::Option* option = add(name, target, meaning);
  const bool has_default =
      !std::holds_alternative<std::reference_wrapper<std::optional<std::string>>>(target) &&
      !std::holds_alternative<std::reference_wrapper<std::optional<double>>>(target) &&
      !std::holds_alternative<std::reference_wrapper<std::optional<int64_t>>>(target);
  if (has_default) option->capture_default_str();
  return *this;
}

Command& Command::required(const char* name, Target target, const char* meaning) {
  add(name, target, meaning)->required();
  return *this;
}

Command& Command::range(const char* name, int32_t& target, std::pair<int32_t, int32_t> range,
                        const char* meaning) {
  add(name, target, meaning);
  return within(range.first, range.second);
}

CLI::Option* Command::add(const char* name, Target target, const char* meaning) {
  CLI::Option* option =
      std::visit([&](auto value) { return parser_->add_option(name, value.get(), meaning); }, target);
  last_ = option;
  number_.reset();
  if (const std::optional<GivenNumber> number = number_for(target)) {
    number_ = std::make_shared<GivenNumber>(*number);
    option->transform(NumberValidator(number_));
  }
  may_be_empty_ = std::make_shared<bool>(number_ != nullptr);  // which refuses it by itself
  // The last transform comes first.
  return option->transform(CLI::Validator(
      [may_be_empty = may_be_empty_](std::string& word) {
        word = without_mark(std::move(word));
        return std::string(word.empty() && !*may_be_empty ? "expected a value, got nothing" : "");
      },
      ""));
}

Command& Command::or_empty() {
  *may_be_empty_ = true;
  return *this;
}

Command& Command::one_each() {
  last_->allow_extra_args(false);
  return *this;
}

Command& Command::within(double least, std::optional<double> most) {
  number_->least = least;
  number_->most = most;
  return *this;
}

Command& Command::flag(const char* name, std::function<void()> set, const char* meaning) {
  flags_.push_back(parser_->add_flag_callback(name, std::move(set), meaning));
  return *this;
}

Command& Command::exclusive() {
  for (CLI::Option* flag : flags_)
    for (CLI::Option* other : flags_)
      if (flag != other) flag->excludes(other);
  return *this;
}

Command& Command::rest(std::vector<std::string>& words) {
  line_->with_rest = parser_->get_name();
  parser_->formatter(help_text("[OPTIONS] -- COMMAND ..."));
  parser_->parse_complete_callback([&words, line = line_] {
    if (line->rest.empty()) throw CLI::RequiredError("a command after --");
    words = line->rest;
  });
  return *this;
}

Command& Command::notes(const char* text) {
  parser_->footer(text);
  return *this;
}

void Command::run(std::function<int()> work) {
  parser_->final_callback([work = std::move(work), line = line_] { line->code = work(); });
}

CommandLine::CommandLine(const char* name, const char* meaning, const char* version)
    : parser_(std::make_unique<CLI::App>(meaning, name)) {
  parser_->formatter(help_text());  // that of subcommands too, which take it from here
  parser_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

Command CommandLine::commands() { return {parser_.get(), &line_}; }

int CommandLine::run(std::vector<std::string> words) {
  if (!words.empty() && words.front() == "help") {  // `ottava help plan` is `ottava plan --help`
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (!words.empty() && words.front() == line_.with_rest) {
    const auto mark = std::ranges::find(words, "--");
    line_.rest.assign(mark == words.end() ? mark : mark + 1, words.end());
    words.erase(mark, words.end());
  }
  words = with_hyphens(parser_.get(), std::move(words));
  try {
    const std::vector<std::string> marked = with_marks(words);
    parser_->parse(std::vector<std::string>(marked.rbegin(), marked.rend()));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return parser_->exit(e);  // --help, --version
    return say_error(fmt::format("[command line] {}", failure(parser_.get(), e, words)));
  } catch (const std::exception& e) {
    return say_error(error_text(e));
  }
  return line_.code;
}

}  // namespace ottava
