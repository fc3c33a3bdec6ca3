#pragma once

#include <string_view>

namespace ottava {

/// Whether an array begins in this line of JSON lines.
inline bool begins_array(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t\r");
  return at != std::string_view::npos && line[at] == '[';
}

/// What messages say of a file that is one array of objects, as data sets often are, instead of lines of
/// them.
inline constexpr std::string_view kArrayOfLines =
    "an array begins here, expected a JSON object on each line: write one for each element, for example with "
    "jq -c '.[]' FILE";

}  // namespace ottava
