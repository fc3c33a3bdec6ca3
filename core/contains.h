#pragma once

#include <algorithm>
#include <string_view>

namespace ottava {

/// Whether a range has an element equal to `value`.
template <class Range, class Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

/// The first element whose `key` (a member, or a function of the element) equals `value`, or null.
template <class Range, class Value, class Key>
auto* find_by(Range& range, const Value& value, const Key& key) {
  const auto found = std::ranges::find(range, value, key);
  return found == std::ranges::end(range) ? nullptr : &*found;
}

/// Whether `text` contains `part`.
inline bool contains_text(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace ottava
