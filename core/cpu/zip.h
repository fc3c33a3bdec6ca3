#pragma once

#include "core/cpu/lanes.h"

// Vectors taken in turns, for kernel files.
namespace ottava::cpu::OTTAVA_ISA {

/// Lane 0 of a, lane 0 of b, lane 1 of a, ...: of their first halves.
template <class V>
[[gnu::always_inline]] inline V zip_low(V a, V b);
/// Likewise of their second halves.
template <class V>
[[gnu::always_inline]] inline V zip_high(V a, V b) {
  if constexpr (kIsTwo<V>) {
    return {zip_low(a.upper, b.upper), zip_high(a.upper, b.upper)};
  } else {
    constexpr int n = kLanesOf<V>;
#define OTTAVA_LANE(i) ((i) / 2 + (i) % 2 * n + n / 2)
    OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
  }
}
template <class V>
[[gnu::always_inline]] inline V zip_low(V a, V b) {
  if constexpr (kIsTwo<V>) {
    return {zip_low(a.lower, b.lower), zip_high(a.lower, b.lower)};
  } else {
    constexpr int n = kLanesOf<V>;
#define OTTAVA_LANE(i) ((i) / 2 + (i) % 2 * n)
    OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
  }
}

/// The same with two lanes at a time.
template <class V>
[[gnu::always_inline]] inline V zip_pairs_low(V a, V b);
template <class V>
[[gnu::always_inline]] inline V zip_pairs_high(V a, V b) {
  if constexpr (kIsTwo<V>) {
    return {zip_pairs_low(a.upper, b.upper), zip_pairs_high(a.upper, b.upper)};
  } else {
    constexpr int n = kLanesOf<V>;
#define OTTAVA_LANE(i) ((i) / 4 * 2 + (i) % 2 + (i) / 2 % 2 * n + n / 2)
    OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
  }
}
template <class V>
[[gnu::always_inline]] inline V zip_pairs_low(V a, V b) {
  if constexpr (kIsTwo<V>) {
    return {zip_pairs_low(a.lower, b.lower), zip_pairs_high(a.lower, b.lower)};
  } else {
    constexpr int n = kLanesOf<V>;
#define OTTAVA_LANE(i) ((i) / 4 * 2 + (i) % 2 + (i) / 2 % 2 * n)
    OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
  }
}

}  // namespace ottava::cpu::OTTAVA_ISA
