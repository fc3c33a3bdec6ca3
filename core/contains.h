#pragma once

#include <algorithm>

namespace ottava {

/// Whether a range has an element equal to `value`.
template <class Range, class Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

}  // namespace ottava
