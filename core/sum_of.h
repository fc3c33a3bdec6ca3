#pragma once

#include <functional>
#include <iterator>
#include <type_traits>

namespace ottava {

/// Sum, in order, of `part` of each element, where `part` is a function or a member.
template <class Range, class Part>
auto sum_of(const Range& range, const Part& part) {
  std::remove_cvref_t<std::invoke_result_t<const Part&, decltype(*std::begin(range))>> sum = 0;
  for (const auto& element : range) sum += std::invoke(part, element);
  return sum;
}

}  // namespace ottava
