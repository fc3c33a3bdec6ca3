#pragma once

// Transposes of bytes in registers, for kernel files. Whole lines of 64 bytes are written: rows of a
// transpose often lie a power of two apart, where few of them fit the cache at once.

#include "core/cpu/zip.h"
#include "core/float8/codec_vec.h"

namespace ottava::cpu::OTTAVA_ISA {

/// Rows and columns of a strip.
inline constexpr int kStripRows = 64, kStripCols = 16;

#if defined(__AVX512BW__)

/// Each register takes four rows of sixteen bytes, sixteen rows apart; four rounds interleave row i with row
/// i + 8. Per 32 bytes this takes two shuffles and one and a half insertions from memory.
inline void transpose_strip(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  __m512i rows[16], next[16];
  for (int i = 0; i < 16; ++i) {
    auto piece = [&](int lane) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + (lane * 16 + i) * from_stride));
    };
    __m512i v = _mm512_castsi128_si512(piece(0));
    v = _mm512_inserti32x4(v, piece(1), 1);
    v = _mm512_inserti32x4(v, piece(2), 2);
    rows[i] = _mm512_inserti32x4(v, piece(3), 3);
  }
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_unpacklo_epi8(rows[i], rows[i + 8]);
      next[2 * i + 1] = _mm512_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    for (int i = 0; i < 16; ++i) rows[i] = next[i];
  }
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * to_stride, rows[i]);
}

/// `columns`: sixteen registers whose lanes hold four bytes (four rows) of a column. Lane i of each goes to
/// row i of `to`. Rows lie `to_stride` apart, each group of four rows `four_stride`. 64 shuffles.
inline void store_transposed_dwords(const __m512i* columns, uint8_t* to, int64_t to_stride,
                                    int64_t four_stride) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(columns[i], columns[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(columns[i], columns[i + 1]);
  }
  // b[4 g + j]: lane j of each 128 bits, of registers 4 g to 4 g + 3.
  for (int g = 0; g < 16; g += 4) {
    b[g] = _mm512_unpacklo_epi64(a[g], a[g + 2]);
    b[g + 1] = _mm512_unpackhi_epi64(a[g], a[g + 2]);
    b[g + 2] = _mm512_unpacklo_epi64(a[g + 1], a[g + 3]);
    b[g + 3] = _mm512_unpackhi_epi64(a[g + 1], a[g + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i low_01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x44),
                  high_01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xee);
    const __m512i low_23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x44),
                  high_23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xee);
    _mm512_storeu_si512(to + j * to_stride, _mm512_shuffle_i32x4(low_01, low_23, 0x88));
    _mm512_storeu_si512(to + j * to_stride + four_stride, _mm512_shuffle_i32x4(low_01, low_23, 0xdd));
    _mm512_storeu_si512(to + j * to_stride + 2 * four_stride, _mm512_shuffle_i32x4(high_01, high_23, 0x88));
    _mm512_storeu_si512(to + j * to_stride + 3 * four_stride, _mm512_shuffle_i32x4(high_01, high_23, 0xdd));
  }
}

#else

inline void transpose_strip(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  uint8_t lines[kStripCols][kStripRows];
  for (int r = 0; r < kStripRows; r += 16) {
    BVec rows[16], next[16];
    for (int i = 0; i < 16; ++i) __builtin_memcpy(&rows[i], from + (r + i) * from_stride, 16);
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 8; ++i) {
        next[2 * i] = zip_low(rows[i], rows[i + 8]);
        next[2 * i + 1] = zip_high(rows[i], rows[i + 8]);
      }
      __builtin_memcpy(rows, next, sizeof rows);
    }
    for (int i = 0; i < 16; ++i) __builtin_memcpy(lines[i] + r, &rows[i], 16);
  }
  for (int i = 0; i < kStripCols; ++i) __builtin_memcpy(to + i * to_stride, lines[i], kStripRows);
}

#endif

}  // namespace ottava::cpu::OTTAVA_ISA
