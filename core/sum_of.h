#pragma once

#include <functional>
#include <iterator>
#include <type_traits>

namespace ottava {

/// Sum, in order, of what `part` gives of each element: a function of it, or one of its members.
template <class Range, class Part>
auto sum_of(const Range& range, const Part& part) {
  std::remove_cvref_t<std::invoke_result_t<const Part&, decltype(*std::begin(range))>> sum = 0;
  for (const auto& element : range) sum += std::invoke(part, element);
  return sum;
}

}  // namespace ottava
