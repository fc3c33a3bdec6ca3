#include "fp8/encode_vec.h"
#include "fp8/transpose_vec.h"

// Ceiling: memory bandwidth: 2 bytes read per element, one written. Rows: 20 instructions per 32 elements with AVX-512 (two units
// do 32 elements in 10 cycles), 40 in other sets and out of range. Turned: 22.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

using fp8::EncodeRow;
using fp8::EncodeTurned;
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
  const bf16* next;  ///< the tile after this one, whose rows are fetched meanwhile
};
template <class F, bool kCount>
void encode_tile_exactly(const Tile& t, int64_t rows, int64_t cols, QuantizeCounts* counts) {
  alignas(64) uint8_t codes[kTileRows][kTileCols] = {}, lines[kTileCols][kTileRows];
  Losses losses;
  for (int64_t r = 0; r < rows; ++r) {
    const float* scales = t.scales[r / 32];
    encode_exactly<F, kCount>(t.x + r * t.stride, cols, codes[r], losses, [&](int64_t c) { return load(scales + c); });
  }
  if constexpr (kCount) losses.add_to(*counts);
  for (int c = 0; c < kTileCols; c += kStripCols) transpose_strip(codes[0] + c, kTileCols, lines[c], kTileRows);
  for (int64_t c = 0; c < cols; ++c) __builtin_memcpy(t.to + c * t.to_stride, lines[c], static_cast<unsigned long>(rows));
}

#if defined(__AVX512BW__) && defined(__AVX512DQ__)

/// Zeros that were not zeros before, of 64 elements.
struct ZeroCounts {
  int64_t after = 0, before = 0;
  void codes(__m512i bytes) {
    after += __builtin_popcountll(_mm512_testn_epi8_mask(bytes, _mm512_set1_epi8(0x7f)));
  }
  void values(__m512i w) { before += __builtin_popcount(_mm512_testn_epi16_mask(w, _mm512_set1_epi16(0x7fff))); }
};

inline __m512i load_words(const bf16* p) { return _mm512_loadu_si512(p); }

/// Codes of thirty-two values, each in the low byte of its word but for the sign.
template <class F>
inline __m512i word_codes(__m512i w, __m512 scale) {
  const __m512i even = magnitude_codes<F>(even_floats(w), scale), odd = magnitude_codes<F>(odd_floats(w), scale);
  const __m512i shifted = _mm512_maskz_slli_epi16(0x55555555u, odd, 8);
  // (even & 0xff) | shifted: two codes in the low half of each lane, nothing above.
  return _mm512_ternarylogic_epi32(even, shifted, _mm512_set1_epi32(0xff), 0xec);
}
/// 64 codes, values a before values b.
template <class F>
inline __m512i codes_of_64(__m512i a, __m512i b, __m512 scale_a, __m512 scale_b) {
  const __m512i magnitudes = _mm512_packus_epi32(word_codes<F>(a, scale_a), word_codes<F>(b, scale_b));
  const __m512i signs = _mm512_packs_epi16(a, b);  // saturates, and keeps them
  const __m512i codes = choose(0x7f7f7f7fu, magnitudes, signs);
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), codes);
}

template <class F, bool kCount>
void encode_row_in_range(const EncodeRow& a) {
  ZeroCounts zeros;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(a.block));
  const int64_t last = (a.n - 1) >> shift;
  auto scale_of = [&](int64_t i) { return _mm512_set1_ps(a.scales[(i >> shift) * a.scales_stride]); };
  auto encode = [&](const bf16* from, uint8_t* to, __m512 scale_a, __m512 scale_b) {
    const __m512i x = load_words(from), y = load_words(from + 32);
    const __m512i codes = codes_of_64<F>(x, y, scale_a, scale_b);
    if constexpr (kCount) zeros.values(x), zeros.values(y), zeros.codes(codes);
    _mm512_storeu_si512(to, codes);
  };
  const char* next = reinterpret_cast<const char*>(a.x) + a.ahead;
  int64_t i = 0;
  for (; i + 64 <= a.n; i += 64, next += 128) {
    if (a.ahead != 0) __builtin_prefetch(next), __builtin_prefetch(next + 64);
    encode(a.x + i, a.out + i, scale_of(i), scale_of(i + 32));
  }
  if (i < a.n) {
    bf16 values[64] = {};
    uint8_t codes[64];
    __builtin_memcpy(static_cast<void*>(values), a.x + i, static_cast<unsigned long>(a.n - i) * sizeof *a.x);
    encode(values, codes, scale_of(i), scale_of(i + 32 < a.n ? i + 32 : last << shift));
    __builtin_memcpy(a.out + i, codes, static_cast<unsigned long>(a.n - i));
  }
  if constexpr (kCount) a.counts->underflow += zeros.after - zeros.before;
}

/// Scales of even and odd columns of thirty-two.
struct ColumnScales {
  __m512 even, odd;
  explicit ColumnScales(const float* scales) {
    const __m512 low = _mm512_loadu_ps(scales), high = _mm512_loadu_ps(scales + 16);
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_ps(low, evens, high);
    odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high);
  }
};
/// One byte of each of four registers, the first lowest.
inline __m512i join_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i low = choose(0xff, a, _mm512_slli_epi32(b, 8)), high = choose(0xff, c, _mm512_slli_epi32(d, 8));
  return choose(0xffff, low, _mm512_slli_epi32(high, 16));
}

/// 64 x 32 elements: four rows make a register of dwords for the even columns and one for the odd ones; sixteen of either are
/// turned. Per 32 elements 14 instructions for codes, 5.5 to join them with their signs, 2 to turn.
template <class F, bool kCount>
void encode_tile(const Tile& t, int64_t ahead, ZeroCounts& zeros) {
  __m512i even[16], odd[16];
  for (int half = 0; half < 2; ++half) {
    const ColumnScales scale(t.scales[half]);
    for (int q = half * 8; q < half * 8 + 8; ++q) {
      __m512i w[4], e[4], o[4];
      for (int i = 0; i < 4; ++i) {
        const bf16* row = t.x + (q * 4 + i) * t.stride;
        __builtin_prefetch(t.next + (q * 4 + i) * t.stride);
        if (ahead != 0) __builtin_prefetch(reinterpret_cast<const char*>(row) + ahead, 0, 2);
        w[i] = load_words(row);
        e[i] = magnitude_codes<F>(even_floats(w[i]), scale.even);
        o[i] = magnitude_codes<F>(odd_floats(w[i]), scale.odd);
        if constexpr (kCount) zeros.values(w[i]);
      }
      // Signs of both columns of rows 0 and 1 at the tops of their bytes, in the lower half and the upper; of rows 2 and 3.
      const __m512i signs_01 = choose(0x00ff00ff, _mm512_srli_epi32(w[0], 8), w[1]),
                    signs_23 = choose(0x00ff00ff, _mm512_srli_epi32(w[2], 8), w[3]);
      const __m512i even_signs = choose(0xffff, signs_01, _mm512_slli_epi32(signs_23, 16)),
                    odd_signs = choose(0xffff, _mm512_srli_epi32(signs_01, 16), signs_23);
      even[q] = choose(0x7f7f7f7fu, join_bytes(e[0], e[1], e[2], e[3]), even_signs);
      odd[q] = choose(0x7f7f7f7fu, join_bytes(o[0], o[1], o[2], o[3]), odd_signs);
      if constexpr (kCount) zeros.codes(even[q]), zeros.codes(odd[q]);
    }
  }
  store_turned_dwords(even, t.to, 2 * t.to_stride);
  store_turned_dwords(odd, t.to + t.to_stride, 2 * t.to_stride);
}

/// At the edges, through copies padded with zeros.
template <class F, bool kCount>
void encode_ragged_tile(const Tile& t, int64_t rows, int64_t cols, ZeroCounts& zeros) {
  alignas(64) bf16 values[kTileRows][kTileCols] = {};
  alignas(64) uint8_t lines[kTileCols][kTileRows];
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_memcpy(static_cast<void*>(values[r]), t.x + r * t.stride, static_cast<unsigned long>(cols) * sizeof(bf16));
  }
  encode_tile<F, kCount>({values[0], kTileCols, {t.scales[0], t.scales[1]}, lines[0], kTileRows, values[0]}, 0, zeros);
  for (int64_t c = 0; c < cols; ++c) __builtin_memcpy(t.to + c * t.to_stride, lines[c], static_cast<unsigned long>(rows));
}

#endif

template <class F, bool kCount>
void encode_row_as_needed(const EncodeRow& a) {
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
  if (a.in_range) return encode_row_in_range<F, kCount>(a);
#endif
  encode_row_exactly<F, kCount>(a);
}

template <class F, bool kCount>
void encode_tiles(const EncodeTurned& a) {
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
  ZeroCounts zeros;
#endif
  // Down the columns: a line of the transpose follows the other.
  for (int64_t c = 0; c < a.cols; c += kTileCols) {
    alignas(64) float scales[2][kTileCols] = {};
    const int64_t cols = a.cols - c < kTileCols ? a.cols - c : kTileCols;
    for (int64_t r = 0; r < a.rows; r += kTileRows) {
      const int64_t rows = a.rows - r < kTileRows ? a.rows - r : kTileRows;
      Tile tile{a.x + r * a.stride + c, a.stride, {}, a.to + c * a.to_stride + r, a.to_stride, nullptr};
      tile.next = r + kTileRows < a.rows ? tile.x + kTileRows * a.stride : a.x + c + kTileCols;
      for (int half = 0; half < 2; ++half) {
        const int64_t row = r + half * 32 < a.rows ? r + half * 32 : r;
        __builtin_memcpy(scales[half], a.scales + row / a.band * a.scales_stride + c,
                         static_cast<unsigned long>(cols) * sizeof(float));
        tile.scales[half] = scales[half];
      }
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
      if (a.in_range) {
        if (rows == kTileRows && cols == kTileCols) {
          encode_tile<F, kCount>(tile, a.ahead, zeros);
        } else {
          encode_ragged_tile<F, kCount>(tile, rows, cols, zeros);
        }
        continue;
      }
#endif
      encode_tile_exactly<F, kCount>(tile, rows, cols, a.counts);
    }
  }
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
  if constexpr (kCount) a.counts->underflow += zeros.after - zeros.before;
#endif
}

template <class F>
fp8::EncodeKernel kernels_of() {
  return {.row = [](const EncodeRow& a) { a.counts ? encode_row_as_needed<F, true>(a) : encode_row_as_needed<F, false>(a); },
          .turned = [](const EncodeTurned& a) { a.counts ? encode_tiles<F, true>(a) : encode_tiles<F, false>(a); }};
}

}  // namespace

fp8::EncodeKernels encode_kernels() { return {.e4m3 = kernels_of<E4M3>(), .e5m2 = kernels_of<E5M2>()}; }

}  // namespace ottava::cpu::OTTAVA_ISA
