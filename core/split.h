#pragma once

#include <string_view>
#include <vector>

namespace ottava {

/// What stands between separators, in order: one part more than there are of them, some perhaps empty.
inline std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

}  // namespace ottava
