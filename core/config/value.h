#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::config {

/// Where a setting was written. Lines and columns start at 1; 0 means that the source has no lines (command
/// line).
struct Location {
  std::shared_ptr<const std::string> source;  ///< file name as given, or "command line"; null for a default
  int line = 0, column = 0;

  bool known() const { return source != nullptr; }
};
/// "configs/debug.yaml:12:3", "command line", "default".
std::string to_string(const Location& location);

struct Member;

/// One node of a configuration, the same for YAML, TOML and the command line.
struct Value {
  enum class Kind { null, boolean, integer, real, text, list, table };

  Kind kind = Kind::null;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;              ///< also set for integers
  std::string text;             ///< scalars: as written (without quotes)
  std::vector<Value> items;     ///< list
  std::vector<Member> members;  ///< table, in the order of the source; keys are unique
  Location at;
  bool untyped = false;  ///< from the command line, where 2 may be a number or a name: the key's type decides

  bool is_scalar() const { return kind != Kind::list && kind != Kind::table; }
  /// Member of a table, or null.
  const Value* find(std::string_view key) const;

  static Value of(bool value, Location at = {});
  static Value of(int64_t value, Location at = {});
  static Value of(double value, Location at = {});
  static Value of(std::string value, Location at = {});
  static Value list_of(const std::vector<std::string>& values);
};

struct Member {
  std::string key;
  Location at;
  Value value;
};

/// True if contents are equal; locations and the spelling of numbers do not count.
bool same(const Value& a, const Value& b);

/// The value in words, for "expected a number, got ...": `the string "many"`, `the integer 3`, `a list`.
std::string describe(const Value& value);

/// A plain (unquoted) scalar by the YAML 1.2 core schema: null, true/false, integers (also 0x, 0o), numbers
/// (1e-4, .5), else text. So `yes`, `on` and `1_000` are text, and a number too large for an integer is a
/// real.
Value plain_scalar(std::string_view text, Location at);

/// Shortest text that reads back as the same double and looks like one ("1.0", "1.0e-08").
std::string to_text(double value);

}  // namespace ottava::config
