#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ottava::data {

/// What is wrong with a line of JSON, and where.
struct JsonProblem {
  size_t column = 0;  ///< from 1, in bytes
  std::string what;
};

/// Appends the string under `key` of the JSON object (RFC 8259) in `line` to `out`. The whole line is
/// checked. Members of nested objects do not count; if the key occurs twice, the last value wins. Returns
/// nothing on success, else the problem, with `out` as before.
std::optional<JsonProblem> append_json_string(std::string_view line, std::string_view key, std::string& out);

}  // namespace ottava::data
