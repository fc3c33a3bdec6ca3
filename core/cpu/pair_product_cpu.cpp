#include "core/cpu/pair_product_kernel.h"
#include "core/cpu/panel_product_kernel.h"

namespace ottava::cpu::OTTAVA_ISA {
namespace {

inline UVec load_words(const bf16* p) {
  UVec words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}
inline __m256i load_half(const bf16* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

/// 32 numbers of a row from column c on, with zeros past its last column; 16 or more exist.
inline UVec terms(const bf16* row, int64_t c, int64_t columns) {
  return c + kTerms <= columns ? load_words(row + c)
                               : bits_as<UVec>(_mm512_zextsi256_si512(load_half(row + c)));
}

// Row by row, which processors can prefetch.
void pack_rows(const void* from, int64_t stride, void* to, Rows block) {
  constexpr int64_t kSquare = kPairPanel * kTerms;
  bf16* panel = static_cast<bf16*>(to);
  for (int64_t i = block.begin; i < block.end;
       i += kPairPanel, panel += whole_pair_panels(block.cols) * kPairPanel) {
    const bf16* row = static_cast<const bf16*>(from) + i * stride;
    const int64_t rows = least(kPairPanel, block.end - i);
    for (int64_t r = 0; r < kPairPanel; ++r, row += stride) {
      bf16* target = panel + r * kTerms;
      for (int64_t c = 0; c < block.cols; c += kTerms, target += kSquare)
        store_words(target, r < rows ? terms(row, c, block.cols) : UVec{});
    }
  }
}

/// to = 16 x 16 words, words[r] in column r.
template <class Word>
inline void store_transposed(bf16* to, Word&& word) {
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) rows[r] = bits_as<Vec>(word(r));
  transpose(rows);
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) store_words(to + r * kTerms, bits_as<UVec>(rows[r]));
}

void pack_transposed(const void* from, int64_t stride, void* to, Rows block) {
  bf16* target = static_cast<bf16*>(to);
  for (int64_t i = block.begin; i < whole_pair_panels(block.end); i += kTile) {
    const bf16* row = static_cast<const bf16*>(from) + i * stride;
    for (int64_t c = 0; c < block.cols; c += kTerms, target += kTile * kTerms) {
      if (i + kTile <= block.end) {
        store_transposed(target, [&](int r) { return terms(row + r * stride, c, block.cols); });
      } else {
        store_transposed(target, [&](int r) {
          return i + r < block.end ? terms(row + r * stride, c, block.cols) : UVec{};
        });
      }
    }
  }
}

/// 16 columns of two rows, interleaved; the second may not exist.
inline UVec by_turns(const bf16* even, const bf16* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(load_half(even));
  return bits_as<UVec>(
      odd ? _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(odd)), 16)) : low);
}
/// Two rows, of which those at `end` and later do not exist.
inline UVec pair(const bf16* from, int64_t stride, int64_t even, int64_t odd, int64_t end) {
  if (even >= end) return UVec{};
  return by_turns(from + even * stride, odd < end ? from + odd * stride : nullptr);
}

/// Of 32 rows, the pairs r of rows[0] r and rows[0] r + rows[1].
template <int64_t kBetweenPairs, int64_t kBetweenRows>
void pack_pairs_of(const void* from, int64_t stride, void* to, Rows block) {
  bf16* target = static_cast<bf16*>(to);
  for (int64_t i = block.begin; i < block.end; i += kTerms) {
    for (int64_t c = 0; c < block.cols; c += kTile) {
      for (int64_t r = 0; r < kTerms / 2; ++r, target += kTerms) {
        const int64_t even = i + r * kBetweenPairs;
        store_words(target,
                    pair(static_cast<const bf16*>(from) + c, stride, even, even + kBetweenRows, block.end));
      }
    }
  }
}
constexpr auto pack_pairs = pack_pairs_of<2, 1>, pack_folded = pack_pairs_of<1, kTerms / 2>;

/// to = 32 columns of 32 rows, column by column. Two rows' numbers are interleaved within 128 bits, so that
/// the transposed words come in two sets of columns, 4 of every 8.
inline void store_columns(bf16* to, const bf16* from, int64_t stride) {
  Vec low[kLanes], high[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    const __m512i even = bits_as<__m512i>(load_words(from + 2 * r * stride)),
                  odd = bits_as<__m512i>(load_words(from + (2 * r + 1) * stride));
    low[r] = bits_as<Vec>(_mm512_unpacklo_epi16(even, odd));
    high[r] = bits_as<Vec>(_mm512_unpackhi_epi16(even, odd));
  }
  transpose(low);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store_words(to + (i / 4 * 8 + i % 4) * kTerms, bits_as<UVec>(low[i]));
  transpose(high);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store_words(to + (i / 4 * 8 + 4 + i % 4) * kTerms, bits_as<UVec>(high[i]));
}

void pack_summed(const void* from, int64_t stride, void* to, Rows block) {
  bf16* target = static_cast<bf16*>(to);
  for (int64_t i = block.begin; i < block.end; i += kTerms) {
    const bf16* row = static_cast<const bf16*>(from) + i * stride;
    int64_t c = 0;
    for (; i + kTerms <= block.end && c + kPairPanel <= block.cols;
         c += kPairPanel, target += kPairPanel * kTerms)
      store_columns(target, row + c, stride);
    for (; c < block.cols; c += kTile, target += kTile * kTerms)
      store_transposed(target, [&](int r) { return pair(row + c, stride, 2 * r, 2 * r + 1, block.end - i); });
  }
}

template <class T>
void store_sums(const PairProductKernels::Store& s, Rows block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    const float* from = s.from + i * s.from_stride;
    T* to = static_cast<T*>(s.to) + i * s.to_stride;
    if (s.accumulate) {
      for_each_vec(block.cols, [&](int64_t c, auto lanes) {
        store(to + c, load(to + c, lanes) + load(from + c, lanes) * s.factor, lanes);
      });
    } else {
      for_each_vec(block.cols,
                   [&](int64_t c, auto lanes) { store(to + c, load(from + c, lanes) * s.factor, lanes); });
    }
  }
}

}  // namespace

PairProductKernels pair_product_kernels() {
  return {begin_thread, end_thread,      multiply,
          pack_rows,    pack_transposed, pack_pairs,
          pack_folded,  pack_summed,     {store_sums<float>, store_sums<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
