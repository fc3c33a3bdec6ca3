#pragma once

#include "core/cpu/lanes.h"

// Vectors taken in turns, for kernel files.
namespace ottava::cpu::OTTAVA_ISA {

/// `together` lanes of a, as many of b, the next of a, ...: of their first halves, or of their upper ones.
template <int together, bool upper, class V>
[[gnu::always_inline]] inline V by_turns_of(V a, V b) {
  if constexpr (!kIsTwo<V>) {
    constexpr int n = kLanesOf<V>, first = upper ? n / 2 : 0;
#define OTTAVA_LANE(i) (first + (i) / (2 * together) * together + (i) % together + (i) / together % 2 * n)
    OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
  } else if constexpr (upper) {
    return {by_turns_of<together, false>(a.upper, b.upper), by_turns_of<together, true>(a.upper, b.upper)};
  } else {
    return {by_turns_of<together, false>(a.lower, b.lower), by_turns_of<together, true>(a.lower, b.lower)};
  }
}

/// Lane 0 of a, lane 0 of b, lane 1 of a, ...: of their first halves.
template <class V>
inline V zip_low(V a, V b) {
  return by_turns_of<1, false>(a, b);
}
/// Likewise of their upper halves.
template <class V>
inline V zip_high(V a, V b) {
  return by_turns_of<1, true>(a, b);
}

/// The same in units of two lanes.
template <class V>
inline V zip_pairs_low(V a, V b) {
  return by_turns_of<2, false>(a, b);
}
template <class V>
inline V zip_pairs_high(V a, V b) {
  return by_turns_of<2, true>(a, b);
}

}  // namespace ottava::cpu::OTTAVA_ISA
