#pragma once

#include <algorithm>
#include <string_view>

namespace ottava {

/// Whether a range has an element equal to `value`.
template <class Range, class Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

/// Whether `part` stands somewhere in `text`.
inline bool contains_text(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace ottava
