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

/// to = two tiles of 32 columns, of which each line is read but once: of rows that are pages apart, few stay
/// in the L1 cache.
template <int64_t kBetweenPairs, int64_t kBetweenRows>
inline void store_pairs(bf16* to, const bf16* from, int64_t stride) {
  const UVec first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const UVec low = first * 0x10001u + 0x200000u, high = low + 0x100010u;  // from 32 on: of the odd row
  for (int64_t r = 0; r < kTerms / 2; ++r, to += kTerms) {
    const bf16* at = from + r * kBetweenPairs * stride;
    const __m512i even = bits_as<__m512i>(load_words(at)),
                  odd = bits_as<__m512i>(load_words(at + kBetweenRows * stride));
    store_words(to, bits_as<UVec>(_mm512_permutex2var_epi16(even, bits_as<__m512i>(low), odd)));
    store_words(to + kTile * kTerms,
                bits_as<UVec>(_mm512_permutex2var_epi16(even, bits_as<__m512i>(high), odd)));
  }
}

/// Of 32 rows, the pairs r of rows[0] r and rows[0] r + rows[1].
template <int64_t kBetweenPairs, int64_t kBetweenRows>
void pack_pairs_of(const void* from, int64_t stride, void* to, Rows block) {
  bf16* target = static_cast<bf16*>(to);
  for (int64_t i = block.begin; i < block.end; i += kTerms) {
    int64_t c = 0;
    for (; i + kTerms <= block.end && c + kPairPanel <= block.cols;
         c += kPairPanel, target += kPairPanel * kTerms)
      store_pairs<kBetweenPairs, kBetweenRows>(target, static_cast<const bf16*>(from) + i * stride + c,
                                               stride);
    for (; c < block.cols; c += kTile) {
      for (int64_t r = 0; r < kTerms / 2; ++r, target += kTerms) {
        const int64_t even = i + r * kBetweenPairs;
        store_words(target,
                    pair(static_cast<const bf16*>(from) + c, stride, even, even + kBetweenRows, block.end));
      }
    }
  }
}
constexpr auto pack_pairs = pack_pairs_of<2, 1>;

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

using Result = PairProductKernels::Result;

#if defined(__AVX512BF16__)
/// Rows of sums as a result's, of which only some rows and columns may exist.
template <class T>
struct ResultRows {
  const Result& result;
  T* to;
  int64_t rows, columns;

  void fetch(int vectors) const {
    for (int64_t i = 0; i < least(kPairRows, rows); ++i)
      fetch_target(to + i * result.stride, vectors * kTile * static_cast<int64_t>(sizeof(T)));
  }
  void put(int j, __m512 sum) const {
    if (rows <= 0 || columns <= j * kTile) return;
    if (columns >= (j + 1) * kTile) {
      put(to + j * kTile, bits_as<Vec>(sum), Whole{});
    } else {
      put(to + j * kTile, bits_as<Vec>(sum), Part{static_cast<int>(columns - j * kTile)});
    }
  }
  void next() { to += result.stride, --rows; }

 private:
  template <class Lanes>
  void put(T* at, Vec sum, Lanes lanes) const {
    store(at, result.accumulate ? load(at, lanes) + sum * result.factor : sum * result.factor, lanes);
  }
};
/// Sums that are to be added to: those of the next rows are fetched meanwhile.
struct NextSumRows : SumRows {
  void fetch(int vectors) const {
    for (int i = 0; i < kPairRows; ++i)
      fetch_target(c + (kPairRows + i) * c_row, vectors * kTile * static_cast<int64_t>(sizeof(float)));
  }
};

/// The next panel of B is fetched by the eight groups of rows that 64 rows are.
template <class T>
void multiply_to(const PairProduct& p, const Result* result, Rows block) {
  constexpr int kLinesAhead = 4;
  const bf16* b = p.b;
  LinesAhead first(p.ahead[0], whole_pair_panels(p.n) * whole_pair_panels(p.m) / (kPairPanel * kPairPanel));
  for (int64_t j = 0; j < p.n; j += kPairPanel, b += p.b_panel) {
    const bf16* next = j + kPairPanel < p.n ? b + p.b_panel : p.b_after ? p.b_after : b;
    for (int64_t i = 0; i < p.m; i += kPairRows) {
      if (i % kPairPanel == 0) first.fetch();
      const bf16* a = p.a + i / kPairPanel * p.a_panel + i % kPairPanel * p.a_row;
      const int64_t line = i / kPairRows * kLinesAhead % kPairPanel;
      const bf16* ahead = next + line / kTile * p.b_block + line % kTile * kTerms;
      const auto sum = [&](auto target) {
        if (j + kTile < p.n) {
          sum_pairs<2, kLinesAhead>(p, a, b, p.c + i * p.c_row + j, ahead, target);
        } else {
          sum_pairs<1, kLinesAhead>(p, a, b, p.c + i * p.c_row + j, ahead, target);
        }
      };
      if (result) {
        sum(ResultRows<T>{*result, static_cast<T*>(result->to) + i * result->stride + j, block.end - i,
                          block.cols - j});
      } else {
        sum(NextSumRows{{p.c + i * p.c_row + j, p.c_row}});
      }
    }
  }
}
#else
template <class T>
void multiply_to(const PairProduct& p, const Result* result, Rows block) {
  multiply(p);
  for (int64_t i = 0; result && i < block.end; ++i) {
    const float* from = p.c + i * p.c_row;
    T* to = static_cast<T*>(result->to) + i * result->stride;
    if (result->accumulate) {
      for_each_vec(block.cols, [&](int64_t c, auto lanes) {
        store(to + c, load(to + c, lanes) + load(from + c, lanes) * result->factor, lanes);
      });
    } else {
      for_each_vec(block.cols, [&](int64_t c, auto lanes) {
        store(to + c, load(from + c, lanes) * result->factor, lanes);
      });
    }
  }
}
#endif

}  // namespace

PairProductKernels pair_product_kernels() {
#if defined(__AVX512BF16__)
  constexpr bool kWritesFromRegisters = true;
  constexpr auto pack_rounded = pack_pairs;
#else
  constexpr bool kWritesFromRegisters = false;
  constexpr auto pack_rounded = pack_pairs_of<1, kTerms / 2>;  // terms r and r + 16 of 32 alternate
#endif
  return {begin_thread,        end_thread,      multiply,
          pack_rows,           pack_transposed, pack_pairs,
          pack_rounded,        pack_summed,     {multiply_to<float>, multiply_to<bf16>},
          kWritesFromRegisters};
}

}  // namespace ottava::cpu::OTTAVA_ISA
