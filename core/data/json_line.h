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

/// What is wrong with a file that is one array of objects, as data sets often are, instead of lines of them.
inline constexpr std::string_view kArrayOfLines =
    "an array begins here, expected a JSON object on each line: write one for each element, for example with "
    "jq -c '.[]' FILE";
/// Whether an array begins in `line`.
bool begins_array(std::string_view line);

/// Appends the string under `key` of the JSON object (RFC 8259) in `line` to `out`. The whole line is
/// checked. Members of nested objects do not count; if the key occurs twice, the last value wins. Returns
/// nothing on success, else the problem, with `out` as before.
std::optional<JsonProblem> append_json_string(std::string_view line, std::string_view key, std::string& out);

}  // namespace ottava::data
