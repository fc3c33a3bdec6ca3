#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/value.h"

namespace ottava::config {

/// Where each key that was set ("training.steps") was written.
using Origins = std::map<std::string, Location, std::less<>>;

/// Collects everything that is wrong with a configuration, so that one run reports it all.
class Problems {
 public:
  /// `file:line:column: message`.
  void add(const Location& at, std::string message);
  /// For checks across keys: `file:line:column: training.steps: message`, located where the key was set, or
  /// at "default" when it was not. Give the arithmetic that failed: "65 is not a multiple of local_batch_size
  /// 8".
  void add(std::string_view key, std::string message);

  bool given(std::string_view key) const { return origins.find(key) != origins.end(); }
  bool empty() const { return found_.empty(); }
  /// One line each, in the order of the file; then the command line; then defaults.
  std::vector<std::string> lines() const;
  /// Throws one ConfigError with one line per problem; returns when there is none.
  void throw_if_any(std::string_view what) const;

  Origins origins;

 private:
  struct Problem {
    Location at;
    std::string text;
  };
  std::vector<Problem> found_;
};

}  // namespace ottava::config
