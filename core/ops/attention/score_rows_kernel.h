#pragma once

// What kernels do with rows of scores: visibility, rounding. For kernel files only.

#include "core/cpu/exponentials.h"
#include "core/cpu/vec.h"
#include "core/ops/attention/attention_kernels.h"

namespace ottava::cpu::OTTAVA_ISA {

inline constexpr float kLn2 = 0.693147180559945309f;

// Loops over scores take two vectors at a time: the upper halves of both make one vector of bf16.
inline constexpr int64_t kStep = 2 * kLanes;
inline void store_upper_halves(bf16* to, UVec a, UVec b) {
#if defined(__AVX512F__)
  using Halves = VectorOf<uint16_t, 2 * kLanes>;
  const Halves u = bits_as<Halves>(a), v = bits_as<Halves>(b);
  const Halves upper =
      __builtin_shufflevector(u, v, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39,
                              41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63);
  write_lanes(to, upper);
#else
  write_lanes(to, narrow(a >> 16));
  write_lanes(to + kLanes, narrow(b >> 16));
#endif
}

/// Rounds to nearest, ties away from zero, with two additions and one permutation for 32 elements. It would
/// turn only NaNs with all low bits set into zeros, and none arise here.
inline void store_tile(bf16* to, Vec a, Vec b) {
  store_upper_halves(to, bits_as<UVec>(a) + 0x8000u, bits_as<UVec>(b) + 0x8000u);
}
inline void store_tile(float* to, Vec a, Vec b) {
  store(to, a);
  store(to + kLanes, b);
}

/// The keys [begin, end) of a tile that a row sees, and the whole steps [first, last) that hold them.
struct Visible {
  int64_t begin, end, first, last;
};
inline Visible visible_keys(const ScoreTile& t, int64_t row) {
  const int64_t query =
      row < t.queries ? row : row % t.queries;  // a division is as long as eight exponentials
  int64_t begin = 0, end = t.first_query + query - t.first_key + 1;
  if (t.document_start) begin = t.document_start[query] - t.first_key;
  begin = begin < 0 ? 0 : begin;
  end = end < t.keys ? end : t.keys;
  if (begin >= end) return {0, 0, 0, 0};
  return {begin, end, begin / kStep * kStep, (end + kStep - 1) / kStep * kStep};
}

}  // namespace ottava::cpu::OTTAVA_ISA
