#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "apps/commands/given_number.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ottava {

/// A command of the program: what it takes and what it does. Targets of options must live as long as the
/// function given to run().
class Command {
 public:
  template <class... T>
  using OneOf = std::variant<std::reference_wrapper<T>...>;
  using Target = OneOf<std::string, std::optional<std::string>, std::optional<double>, std::optional<int64_t>,
                       int32_t, int64_t, uint64_t, double, std::vector<std::string>>;

  /// What the commands of one command line share.
  struct Line {
    int code = 0;
    std::string with_rest;          ///< the command that has called rest()
    std::vector<std::string> rest;  ///< its words after "--", which the parser does not see
  };
  Command(CLI::App* parser, Line* line) : parser_(parser), line_(line) {}

  /// Adds a subcommand. A command that has subcommands needs one of them.
  Command subcommand(const char* name, const char* meaning);
  /// Adds a subcommand on an experiment, which takes a configuration file (`options.file`) and `--section.key
  /// value` for any of its keys (`options.overrides`).
  template <class Options>
  Command experiment(const char* name, const char* meaning, Options& options) {
    return experiment(name, meaning, options.file, options.overrides);
  }

  /// Adds an option: "--name", or "name" for a positional word. The help shows the value that the target has
  /// now. A number must be decimal, finite and one that the target holds. An empty value, as of a shell's
  /// variable that is not set, is refused.
  Command& option(const char* name, Target target, const char* meaning);
  Command& required(const char* name, Target target, const char* meaning);
  /// Adds an optional whole number in [first, last].
  Command& range(const char* name, int32_t& target, std::pair<int32_t, int32_t> range, const char* meaning);
  /// Requires the number of the option before this to be in [least, most].
  Command& within(double least, std::optional<double> most = {});
  /// Lets the option before this be empty.
  Command& or_empty();
  /// Makes the option before this, which may be repeated, take one value each time, not all that follow.
  Command& one_each();
  /// Adds a flag that sets `target` to `value`.
  template <class T>
  Command& flag(const char* name, T& target, std::type_identity_t<T> value, const char* meaning) {
    return flag(
        name, [&target, value] { target = value; }, meaning);
  }
  /// Allows at most one of the flags above.
  Command& exclusive();
  /// Takes everything after "--", word by word; there must be at least one word. Only one command may use it.
  Command& rest(std::vector<std::string>& words);
  /// Text below the options in the help.
  Command& notes(const char* text);
  /// `work` returns the exit code.
  void run(std::function<int()> work);
  /// The same for work that prints what it finds, and throws if it cannot.
  template <class Options>
  void run(const std::shared_ptr<Options>& options, void (*work)(const Options&, std::ostream&)) {
    run([=] {
      work(*options, std::cout);
      return 0;
    });
  }

 private:
  CLI::Option* add(const char* name, Target target, const char* meaning);
  Command& flag(const char* name, std::function<void()> set, const char* meaning);
  Command experiment(const char* name, const char* meaning, std::string& file,
                     std::vector<std::string>& overrides);

  CLI::App* parser_;
  Line* line_;
  std::shared_ptr<GivenNumber> number_;  ///< of the last option; null: that takes text
  std::shared_ptr<bool> may_be_empty_;   ///< the last option
  CLI::Option* last_ = nullptr;
  std::vector<CLI::Option*> flags_;
};

/// The program's commands.
class CommandLine {
 public:
  CommandLine(const char* name, const char* meaning, const char* version);
  ~CommandLine();
  Command commands();

  /// Runs the command that `words` ask for, --like_this or --like-this, and returns the exit code. If they
  /// ask for none, or if it throws, prints one sentence to standard error and returns 1.
  int run(std::vector<std::string> words);

 private:
  std::unique_ptr<CLI::App> parser_;
  Command::Line line_;
};

}  // namespace ottava
