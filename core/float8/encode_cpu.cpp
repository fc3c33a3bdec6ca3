#include "core/float8/encode_vec.h"
#include "core/float8/transpose_vec.h"

// Ceiling: memory bandwidth: 2 bytes read per element, one written. Instructions per 32 elements: rows 20
// with AVX-512 (two units do 32 elements in 10 cycles), 11 where it has arithmetic of 16 bits and scales are
// powers of two, 40 in other sets, out of range and at the edges of a transpose; transposed 22 and 13.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

using fp8::EncodeRow;
using fp8::EncodeTransposed;
using fp8::QuantizeCounts;

template <class F, bool kCount>
void encode_row_exactly(const EncodeRow& a) {
  Losses losses;
  for (int64_t start = 0; start < a.n; start += a.block) {
    const Vec scale = splat(a.scales[start / a.block * a.scales_stride]);
    const int64_t n = a.n - start < a.block ? a.n - start : a.block;
    encode_exactly<F, kCount>(a.x + start, n, a.out + start, losses, [&](int64_t) { return scale; });
  }
  if constexpr (kCount) losses.add_to(*a.counts);
}

/// A tile of up to 64 rows and 32 columns, through rows of codes.
constexpr int kTileRows = kStripRows, kTileCols = 32;
struct Tile {
  const bf16* x;
  int64_t stride;
  const float* scales[2];  ///< of the upper 32 rows and the lower
  uint8_t* to;
  int64_t to_stride;
};
template <class F, bool kCount>
void encode_tile_exactly(const Tile& t, int64_t rows, int64_t cols, QuantizeCounts* counts) {
  alignas(64) uint8_t codes[kTileRows][kTileCols] = {}, lines[kTileCols][kTileRows];
  Losses losses;
  for (int64_t r = 0; r < rows; ++r) {
    const float* scales = t.scales[r / 32];
    encode_exactly<F, kCount>(t.x + r * t.stride, cols, codes[r], losses,
                              [&](int64_t c) { return load(scales + c); });
  }
  if constexpr (kCount) losses.add_to(*counts);
  for (int c = 0; c < kTileCols; c += kStripCols)
    transpose_strip(codes[0] + c, kTileCols, lines[c], kTileRows);
  for (int64_t c = 0; c < cols; ++c) __builtin_memcpy(t.to + c * t.to_stride, lines[c], rows);
}

#if defined(__AVX512BW__) && defined(__AVX512DQ__)

/// Zeros that were not zeros before, of 64 elements.
struct ZeroCounts {
  int64_t after = 0, before = 0;
  void codes(__m512i bytes) {
    after += __builtin_popcountll(_mm512_testn_epi8_mask(bytes, _mm512_set1_epi8(0x7f)));
  }
  void values(__m512i w) {
    before += __builtin_popcount(_mm512_testn_epi16_mask(w, _mm512_set1_epi16(0x7fff)));
  }
};

inline __m512i load_words(const bf16* p) { return _mm512_loadu_si512(p); }

/// `Coder` is FloatCoder<F> or WordCoder.
template <class Coder, bool kCount>
void encode_row_in_range(const EncodeRow& a) {
  ZeroCounts zeros;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(a.block));
  const int64_t last = (a.n - 1) >> shift;
  auto scale_of = [&](int64_t i) { return Coder::splat(a.scales[(i >> shift) * a.scales_stride]); };
  auto encode = [&](const bf16* from, uint8_t* to, typename Coder::Scale scale_a,
                    typename Coder::Scale scale_b) {
    const __m512i x = load_words(from), y = load_words(from + 32);
    const __m512i magnitudes = Coder::magnitudes(x, y, scale_a, scale_b);
    const __m512i signs = _mm512_packs_epi16(x, y);  // saturates, and keeps them
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i codes = _mm512_permutexvar_epi64(order, choose(0x7f7f7f7fu, magnitudes, signs));
    if constexpr (kCount) zeros.values(x), zeros.values(y), zeros.codes(codes);
    _mm512_storeu_si512(to, codes);
  };
  const char* next = reinterpret_cast<const char*>(a.x) + a.ahead;
  int64_t i = 0;
  for (; i + 64 <= a.n; i += 64, next += 128) {
    if (a.ahead != 0) __builtin_prefetch(next, 0, 2), __builtin_prefetch(next + 64, 0, 2);
    encode(a.x + i, a.out + i, scale_of(i), scale_of(i + 32));
  }
  if (i < a.n) {
    bf16 values[64] = {};
    uint8_t codes[64];
    __builtin_memcpy(static_cast<void*>(values), a.x + i, (a.n - i) * sizeof *a.x);
    encode(values, codes, scale_of(i), scale_of(i + 32 < a.n ? i + 32 : last << shift));
    __builtin_memcpy(a.out + i, codes, a.n - i);
  }
  if constexpr (kCount) a.counts->underflow += zeros.after - zeros.before;
}

/// Columns of codes on their way to memory, bypassing the caches, two lines at a time: if columns are a power
/// of two apart, the few lines that fit a set of a cache would evict each other. A little is written at a
/// time, while the next columns are encoded.
struct LineStream {
  static constexpr int kRows = 2 * kTileRows;
  const uint8_t (*from)[kRows];
  uint8_t* to;
  int64_t to_stride;
  int left = 0;
  void step() {
    if (left == 0) return;
    for (int i = 0; i < kRows; i += 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(*from + i));
    }
    ++from, to += to_stride, --left;
  }
  /// To be called before another thread reads them, because such stores are not ordered with those that
  /// follow.
  void finish() {
    while (left > 0) step();
    _mm_sfence();
  }
};

/// 64 x 32 elements: four rows make a register of dwords for the even columns and one for the odd ones;
/// sixteen of either are transposed. Per 32 elements 14 instructions for codes, 5.5 to join them with their
/// signs, 2 to transpose.
template <bool kCount, class F>
void encode_tile(FloatCoder<F>, const Tile& t, LineStream& stream, ZeroCounts& zeros) {
  __m512i even[16], odd[16];
  for (int half = 0; half < 2; ++half) {
    const ColumnScales scale(t.scales[half]);
    for (int q = half * 8; q < half * 8 + 8; ++q) {
      stream.step();
      __m512i w[4], e[4], o[4];
      for (int i = 0; i < 4; ++i) {
        const bf16* row = t.x + (q * 4 + i) * t.stride;
        w[i] = load_words(row);
        e[i] = magnitude_codes<F>(even_floats(w[i]), scale.even);
        o[i] = magnitude_codes<F>(odd_floats(w[i]), scale.odd);
        if constexpr (kCount) zeros.values(w[i]);
      }
      // Signs of both columns of rows 0 and 1 at the tops of their bytes, in the lower half and the upper; of
      // rows 2 and 3.
      const __m512i signs_01 = choose(0x00ff00ff, _mm512_srli_epi32(w[0], 8), w[1]),
                    signs_23 = choose(0x00ff00ff, _mm512_srli_epi32(w[2], 8), w[3]);
      const __m512i even_signs = choose(0xffff, signs_01, _mm512_slli_epi32(signs_23, 16)),
                    odd_signs = choose(0xffff, _mm512_srli_epi32(signs_01, 16), signs_23);
      even[q] = choose(0x7f7f7f7fu, join_bytes(e[0], e[1], e[2], e[3]), even_signs);
      odd[q] = choose(0x7f7f7f7fu, join_bytes(o[0], o[1], o[2], o[3]), odd_signs);
      if constexpr (kCount) zeros.codes(even[q]), zeros.codes(odd[q]);
    }
  }
  store_transposed_dwords(even, t.to, 2 * t.to_stride, 8 * t.to_stride);
  store_transposed_dwords(odd, t.to + t.to_stride, 2 * t.to_stride, 8 * t.to_stride);
}

#if defined(__AVX512FP16__)
/// Two rows make a register of words, four of them two registers of dwords. Per 32 elements 7 instructions
/// for codes, 3 to join them with their signs, 2 to transpose.
template <bool kCount>
void encode_tile(WordCoder, const Tile& t, LineStream& stream, ZeroCounts& zeros) {
  __m512i low[16], high[16];
  for (int half = 0; half < 2; ++half) {
    const __m512i down = downs_of(t.scales[half]);
    for (int q = half * 8; q < half * 8 + 8; ++q) {
      stream.step();
      __m512i w[4], codes[4];
      for (int i = 0; i < 4; ++i) {
        const bf16* row = t.x + (q * 4 + i) * t.stride;
        w[i] = load_words(row);
        codes[i] = word_magnitude_codes(w[i], down);
        if constexpr (kCount) zeros.values(w[i]);
      }
      auto join = [&](int i) {
        const __m512i magnitudes = choose(0x00ff00ffu, codes[i], _mm512_slli_epi16(codes[i + 1], 8)),
                      signs = choose(0x00ff00ffu, _mm512_srli_epi16(w[i], 8), w[i + 1]);
        return choose(0x7f7f7f7fu, magnitudes, signs);
      };
      const __m512i upper = join(0), lower = join(2);
      low[q] = _mm512_unpacklo_epi16(upper, lower);
      high[q] = _mm512_unpackhi_epi16(upper, lower);
      if constexpr (kCount) zeros.codes(low[q]), zeros.codes(high[q]);
    }
  }
  // Columns 0 to 3 of each eight are in the low ones.
  store_transposed_dwords(low, t.to, t.to_stride, 8 * t.to_stride);
  store_transposed_dwords(high, t.to + 4 * t.to_stride, t.to_stride, 8 * t.to_stride);
}
#endif

#endif

template <class F, bool kCount>
void encode_row_as_needed(const EncodeRow& a) {
#if defined(__AVX512FP16__)
  if constexpr (F::kMantissa == 3) {
    if (a.in_range && a.powers_of_two) return encode_row_in_range<WordCoder, kCount>(a);
  }
#endif
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
  if (a.in_range) return encode_row_in_range<FloatCoder<F>, kCount>(a);
#endif
  encode_row_exactly<F, kCount>(a);
}

/// Calls encode_tile(tile, rows, cols, its row, its column) for each tile, down the columns, so that the
/// transpose is written line after line.
template <class EncodeTile>
void for_each_tile(const EncodeTransposed& a, EncodeTile&& encode_tile) {
  for (int64_t c = 0; c < a.cols; c += kTileCols) {
    alignas(64) float scales[2][kTileCols] = {};
    const int64_t cols = a.cols - c < kTileCols ? a.cols - c : kTileCols;
    for (int64_t r = 0; r < a.rows; r += kTileRows) {
      const int64_t rows = a.rows - r < kTileRows ? a.rows - r : kTileRows;
      Tile tile{a.x + r * a.stride + c, a.stride, {}, a.to + c * a.to_stride + r, a.to_stride};
      for (int half = 0; half < 2; ++half) {
        const int64_t row = r + half * 32 < a.rows ? r + half * 32 : r;
        tile.scales[half] = a.scales + row / a.band * a.scales_stride + c;
        if (cols == kTileCols) continue;
        __builtin_memcpy(scales[half], tile.scales[half], cols * sizeof(float));
        tile.scales[half] = scales[half];
      }
      encode_tile(tile, rows, cols, r, c);
    }
  }
}

#if defined(__AVX512BW__) && defined(__AVX512DQ__)
template <class F, class Coder, bool kCount>
void encode_transposed_in_range(const EncodeTransposed& a) {
  ZeroCounts zeros;
  alignas(64) uint8_t lines[2][kTileCols][LineStream::kRows];
  const auto alignment = reinterpret_cast<uintptr_t>(a.to) | static_cast<uintptr_t>(a.to_stride);
  const bool streams = a.past_caches && a.rows == LineStream::kRows && alignment % 64 == 0;
  LineStream stream{};
  for_each_tile(a, [&](Tile tile, int64_t rows, int64_t cols, int64_t r, int64_t c) {
    if (streams && cols == kTileCols) {
      auto& mine = lines[c / kTileCols % 2];
      uint8_t* to = tile.to;
      tile.to = mine[0] + r, tile.to_stride = LineStream::kRows;
      encode_tile<kCount>(Coder{}, tile, stream, zeros);
      if (r != 0) stream = {mine, to - r, a.to_stride, kTileCols};
    } else if (rows == kTileRows && cols == kTileCols) {
      encode_tile<kCount>(Coder{}, tile, stream, zeros);
    } else {
      encode_tile_exactly<F, kCount>(tile, rows, cols, a.counts);
    }
  });
  if (streams) stream.finish();
  if constexpr (kCount) a.counts->underflow += zeros.after - zeros.before;
}
#endif

template <class F, bool kCount>
void encode_transposed_as_needed(const EncodeTransposed& a) {
#if defined(__AVX512FP16__)
  if constexpr (F::kMantissa == 3) {
    if (a.in_range && a.powers_of_two) return encode_transposed_in_range<F, WordCoder, kCount>(a);
  }
#endif
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
  if (a.in_range) return encode_transposed_in_range<F, FloatCoder<F>, kCount>(a);
#endif
  for_each_tile(a, [&](const Tile& tile, int64_t rows, int64_t cols, int64_t, int64_t) {
    encode_tile_exactly<F, kCount>(tile, rows, cols, a.counts);
  });
}

template <class F>
fp8::EncodeKernel kernels_of() {
  return {.row =
              [](const EncodeRow& a) {
                a.counts ? encode_row_as_needed<F, true>(a) : encode_row_as_needed<F, false>(a);
              },
          .transposed =
              [](const EncodeTransposed& a) {
                a.counts ? encode_transposed_as_needed<F, true>(a) : encode_transposed_as_needed<F, false>(a);
              }};
}

}  // namespace

fp8::EncodeKernels encode_kernels() { return {.e4m3 = kernels_of<E4M3>(), .e5m2 = kernels_of<E5M2>()}; }

}  // namespace ottava::cpu::OTTAVA_ISA
