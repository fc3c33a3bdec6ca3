#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/value.h"
#include "core/error.h"

namespace ottava::config {

/// Where each key that was set ("training.steps") was written.
using Origins = std::map<std::string, Location, std::less<>>;

/// Collects everything that is wrong with a configuration, so that one run reports it all.
class Problems {
 public:
  /// `file:line:column: message`.
  void add(const Location& at, std::string message);
  /// For checks across keys: `file:line:column: training.steps: message`, located where the key was set, or
  /// at "default" if it was not. Give the arithmetic that failed: "65 is not a multiple of local_batch_size
  /// 8".
  void add(std::string_view key, std::string message);
  /// Either of these, with a message made by fmt::format().
  template <class Place, class First, class... Rest>
  void add(const Place& at, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
    add(at, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
  }
  /// The same with the message of an error that was thrown, without its `[where]`.
  void add(std::string_view key, const Error& error);

  /// Says that a value under this path could not be read, so that what depends on it cannot be judged.
  void spoil(std::string path) { spoiled_.push_back(std::move(path)); }
  /// True if every value of the section could be read, and nothing around it is missing, so that checks
  /// across its keys make sense.
  bool sound(std::string_view section) const;

  bool given(std::string_view key) const { return origins.find(key) != origins.end(); }
  bool empty() const { return found_.empty(); }
  /// One line each, in the order of the file; then the command line; then defaults.
  std::vector<std::string> lines() const;
  /// Throws one ConfigError with one line per problem, if there is any.
  void throw_if_any(std::string_view what) const;

  Origins origins;

 private:
  struct Problem {
    Location at;
    std::string text;
  };
  std::vector<Problem> found_;
  std::vector<std::string> spoiled_;
};

}  // namespace ottava::config
