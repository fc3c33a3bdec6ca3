#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"

namespace ottava {

/// A JSON value. Objects keep the order of their members, so that what we write is the same bytes every time.
/// Accessors throw FileError "[where] what is wrong" with the path of the value, for files that people wrote
/// by hand.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;  // null
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  /// Parses strictly: UTF-8, no comments, no duplicate names, no trailing bytes, at most 64 levels. An
  /// integer beyond int64 becomes a double, which as_integer() refuses. Throws FileError whose message begins
  /// with `where` ("config.json") and which recognises a Git LFS pointer.
  static Json parse(std::string_view text, std::string_view where);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  /// "an object", "a string", ...
  std::string_view kind() const;

  /// Typed values. Throw FileError that names `what` if the kind is another one.
  bool as_bool(std::string_view what) const;
  int64_t as_integer(std::string_view what) const;
  double as_number(std::string_view what) const;
  const std::string& as_string(std::string_view what) const;
  const Array& as_array(std::string_view what) const;
  const Object& as_object(std::string_view what) const;

  /// Member of an object; null if this is not an object or has no such member.
  const Json* find(std::string_view name) const;
  /// Member of an object. Throws FileError naming `what` and the missing member.
  const Json& at(std::string_view name, std::string_view what) const;
  /// Appends a member; this must be an object or null (which becomes one). The caller must make sure that
  /// names differ.
  Json& set(std::string_view name, Json value);
  /// Appends an element; this must be an array or null (which becomes one).
  Json& push(Json value);

  /// The text; with `indent` 0 one line without spaces. Doubles are written with the fewest digits that read
  /// back the same; those that are not finite become null (JSON cannot express them).
  std::string dump(int indent = 0) const;

 private:
  void append_to(std::string& out, int indent, int depth) const;
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

/// Appends `text` as a JSON string with quotes and escapes; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);
/// Appends a finite double so that it reads back the same and stays a number with a point or exponent; else
/// null.
void append_json_number(std::string& out, double value);

}  // namespace ottava
