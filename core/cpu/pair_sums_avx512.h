#pragma once

// Sums of pair_product.h by AVX512-BF16, for kernel files only. Ceiling: the multipliers. Zen 4 starts an
// instruction, 16 sums of two terms, in each cycle, which is twice the rate of f32 multiply-adds; Granite
// Rapids starts one in two cycles, half of that. 8 x 2 vectors of sums need 10 loads for 16 instructions, and
// reach 97 to 99% of that rate on operands in the L1 cache (256 terms) or the L2 cache (768), as do 12 x 2, 8
// x 3 and 6 x 4.

#include <immintrin.h>

#include "core/cpu/pair_product.h"

namespace ottava::cpu::OTTAVA_ISA {

inline constexpr int64_t kTile = 16, kTerms = kPairPanel;

inline void begin_thread() {}
inline void end_thread() {}
inline void finish_stores() {}

/// Number of rows of sums that stay in registers.
inline constexpr int kPairRows = 8;

/// Where rows of sums go, one after another: here to C.
struct SumRows {
  float* c;
  int64_t c_row;
  void fetch(int) const {}
  void put(int j, __m512 sum) const { _mm512_storeu_ps(c + j * kTile, sum); }
  void next() { c += c_row; }
};

/// `ahead`: from there on, some lines for every 32 terms, p.b_depth apart, are fetched meanwhile.
template <int vectors, int lines_ahead, class Target>
inline void sum_pairs(const PairProduct& p, const bf16* a, const bf16* b, float* c, const bf16* ahead,
                      Target target) {
  constexpr int64_t kPairBytes = 4, kTogether = 4;  // pairs between two ends of the loop
  __m512 sums[kPairRows][vectors];
  const int64_t c_row = p.c_row, b_block = p.b_block;
  float* to = c;
#pragma GCC unroll 8
  for (int i = 0; i < kPairRows; ++i, to += c_row) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j)
      sums[i][j] = p.accumulate ? _mm512_loadu_ps(to + j * kTile) : _mm512_setzero_ps();
  }
  target.fetch(vectors);
  const int64_t row = p.a_row * static_cast<int64_t>(sizeof(bf16)), row3 = 3 * row;
  for (int64_t k = 0; k < p.k; k += kTerms, a += p.a_depth, b += p.b_depth, ahead += p.b_depth) {
#pragma GCC unroll 4
    for (int i = 0; i < lines_ahead; ++i) __builtin_prefetch(ahead + i * kTerms, 0, 2);
    const char* upper = reinterpret_cast<const char*>(a);
    const char* lower = upper + kPairRows / 2 * row;
    const bf16* columns = b;
    const int64_t pairs = p.k - k < kTerms ? (p.k - k) / 2 : kTerms / 2;
    for (int64_t t = 0; t < pairs; t += kTogether, upper += kTogether * kPairBytes,
                 lower += kTogether * kPairBytes, columns += kTogether * 2 * kTile) {
#pragma GCC unroll 4
      for (int64_t u = 0; u < kTogether; ++u) {
        __m512bh of_b[vectors];
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j)
          of_b[j] = (__m512bh)_mm512_loadu_si512(columns + u * 2 * kTile + j * b_block);
#pragma GCC unroll 8
        for (int i = 0; i < kPairRows; ++i) {
          const char* first = i < kPairRows / 2 ? upper : lower;
          const int of_half = i % (kPairRows / 2);
          int32_t pair;
          __builtin_memcpy(&pair, first + (of_half == 3 ? row3 : of_half * row) + u * kPairBytes, kPairBytes);
          const __m512bh of_a = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
          for (int j = 0; j < vectors; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], of_a, of_b[j]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPairRows; ++i, target.next()) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) target.put(j, sums[i][j]);
  }
}
template <int vectors>
inline void sum_pairs(const PairProduct& p, const bf16* a, const bf16* b, float* c, const bf16* ahead) {
  sum_pairs<vectors, 1>(p, a, b, c, ahead, SumRows{c, p.c_row});
}

/// `ahead`: two lines of each tile from there on are fetched meanwhile.
inline void sum_2x2(const PairProduct& p, const bf16* a, const bf16* b, float* c, const bf16* ahead) {
  for (int64_t i = 0; i < 2 * kTile; i += kPairRows) {
    const int64_t group = i / kPairRows;
    sum_pairs<2>(p, a + i * p.a_row, b, c + i * p.c_row, ahead + group % 2 * p.b_block + group / 2 * kTerms);
  }
}
inline void sum_2x1(const PairProduct& p, const bf16* a, const bf16* b, float* c) {
  for (int64_t i = 0; i < 2 * kTile; i += kPairRows) sum_pairs<1>(p, a + i * p.a_row, b, c + i * p.c_row, b);
}
inline void sum_1x2(const PairProduct& p, const bf16* a, const bf16* b, float* c) {
  for (int64_t i = 0; i < kTile; i += kPairRows) sum_pairs<2>(p, a + i * p.a_row, b, c + i * p.c_row, b);
}
inline void sum_1x4(const PairProduct& p, const bf16* a, const bf16* b, float* c) {
  sum_1x2(p, a, b, c);
  sum_1x2(p, a, b + p.b_panel, c + 2 * kTile);
}

/// Few terms are no reason to go another way.
inline bool sum_short_steps(const bf16*, const bf16*, int64_t, float*) { return false; }

}  // namespace ottava::cpu::OTTAVA_ISA
