#pragma once

#include "core/cpu/vec.h"

// Vectors of sixteen lanes taken in turns, for kernel files.
namespace ottava::cpu::OTTAVA_ISA {

/// Lane 0 of a, lane 0 of b, lane 1 of a, ...: of their first halves.
template <class V>
V zip_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
/// Likewise of their second halves.
template <class V>
V zip_high(V a, V b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// The same with two lanes at a time.
template <class V>
V zip_pairs_low(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
}
template <class V>
V zip_pairs_high(V a, V b) {
  return __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
}

}  // namespace ottava::cpu::OTTAVA_ISA
