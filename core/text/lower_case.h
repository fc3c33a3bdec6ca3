#pragma once

#include <string>
#include <string_view>

namespace ottava {

/// `text` with A to Z as a to z.
inline std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return lower;
}

}  // namespace ottava
