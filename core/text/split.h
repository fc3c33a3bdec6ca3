#pragma once

#include <string_view>
#include <vector>

namespace ottava {

/// The parts of `text` between separators, in order, empty ones included: one more than there are separators.
inline std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

}  // namespace ottava
