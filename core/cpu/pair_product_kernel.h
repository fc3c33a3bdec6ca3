#pragma once

// Products of pairs, for kernel files only: by AMX or by AVX512-BF16, depending on how the file is compiled.

#include "core/cpu/lines_ahead_kernel.h"
#include "core/cpu/vec.h"
#if defined(__AVX512BF16__)  // clang 14 has another name for AMX's
#include "core/cpu/pair_sums_avx512.h"
#else
#include "core/cpu/pair_sums_amx.h"
#endif

namespace ottava::cpu::OTTAVA_ISA {

/// A panel of B stays in the L1 cache for all panels of A; meanwhile eight of these fetch the next panel of B
/// into the L2 cache, so that the first need not wait for it.
inline void multiply(const PairProduct& p) {
  finish_stores();
  const bf16* b = p.b;
  const int64_t calls = whole_pair_panels(p.n) * whole_pair_panels(p.m) / (kPairPanel * kPairPanel);
  LinesAhead first(p.ahead[0], calls), second(p.ahead[1], calls);
  for (int64_t j = 0, panels = 1; j < p.n; j += panels * kPairPanel, b += panels * p.b_panel) {
    const bool two_columns = j + kTile < p.n;
    // Sums of one tile of rows wait for each other: four of them, not two, go by turns.
    panels = p.m <= kTile && j + 3 * kTile < p.n ? 2 : 1;
    const bf16* next = j + kPairPanel < p.n ? b + p.b_panel : b;
    const bf16* a = p.a;
    float* c = p.c + j;
    for (int64_t i = 0; i < p.m; i += kPairPanel, a += p.a_panel, c += kPairPanel * p.c_row) {
      const bool two_rows = i + kTile < p.m;
      first.fetch();
      second.fetch();
      if (panels == 2) {
        sum_1x4(p, a, b, c);
      } else if (!two_rows) {
        sum_1x2(p, a, b, c);
      } else if (!two_columns) {
        sum_2x1(p, a, b, c);
      } else {
        sum_2x2(p, a, b, c, next + 2 * i % kPairTileElements);
      }
    }
  }
  finish_stores();
}

/// c [steps][32, 32] = a panel of A with `steps` panels of B, packed in whole tiles of terms, whose sums
/// stand apart. Of a head dimension of 16 half of a tile's terms are zeros, which AMX alone must multiply.
inline void sum_steps(const bf16* a, const bf16* b, int64_t terms, int64_t steps, float* c) {
  const int64_t packed = whole_pair_panels(terms);
  if (packed == kTerms && sum_short_steps(a, b, steps, c)) return;
  const PairProduct p{.a_row = kTerms,
                      .a_depth = kPairPanel * kTerms,
                      .b_depth = kPairTileElements,
                      .b_block = kTile * packed,
                      .c_row = kPairPanel,
                      .k = terms};
  for (int64_t i = 0; i < steps; ++i, b += kPairPanel * packed, c += kPairPanel * kPairPanel)
    sum_2x2(p, a, b, c, b);
}

inline constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline void store_words(bf16* p, UVec words) {
  __builtin_memcpy(static_cast<void*>(p), &words, sizeof words);
}

}  // namespace ottava::cpu::OTTAVA_ISA
