#include "core/float8/codec_kernels.h"
#include "core/float8/codec_vec.h"
#include "core/float8/transpose_vec.h"

// Ceiling: memory bandwidth: per element a byte read, and 2 or 4 written (decoding) or one (transposing).

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class F, class T>
void decode_exactly(const uint8_t* codes, int64_t n, float inverse, T* y) {
  for_each_vec(n, [&](int64_t c, auto lanes) {
    store(y + c, fp8_values<F>(load_codes(codes + c, lanes)) * splat(inverse), lanes);
  });
}

#if defined(__AVX512BW__)

/// True if all 64 codes are numbers (or, E5M2, infinities).
template <class F>
inline bool are_numbers(__m512i codes) {
  const __m512i magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
  constexpr char kLast = F::kMantissa == 3 ? 0x7e : 0x7c;
  return _mm512_cmpgt_epi8_mask(magnitudes, _mm512_set1_epi8(kLast)) == 0;
}
/// Reads codes in the upper bytes of words as half-precision floats. E4M3's come out as 2^-8 times their
/// values; its smallest numbers are those of half precision too.
template <class F>
inline __m512i halves(__m512i upper_bytes) {
  if constexpr (F::kMantissa == 2) return upper_bytes;
  // The sign comes down with the rest; what it leaves behind is cleared.
  return _mm512_and_si512(_mm512_srai_epi16(upper_bytes, 1), _mm512_set1_epi16(static_cast<short>(0xbf80)));
}
/// The factor that a block's halves are multiplied with; false if it would not give the bits of value times
/// inverse.
template <class F>
inline bool factor_of(float inverse, float& factor) {
  factor = F::kMantissa == 3 ? inverse * 0x1p8f : inverse;
  return inverse >= 0x1p-100f && inverse <= 0x1p100f;
}
inline Vec products(__m256i halves, float factor) {
  return bits_as<Vec>(_mm512_cvtph_ps(halves)) * splat(factor);
}
inline __m256i lower(__m512i v) { return _mm512_castsi512_si256(v); }
inline __m256i upper(__m512i v) { return _mm512_extracti64x4_epi64(v, 1); }

/// Rounded to bf16, in the upper half of each lane. Powers of two times a code have few enough digits as they
/// are.
inline UVec upper_bf16(Vec v, bool is_exact) {
  const UVec u = bits_as<UVec>(v);
  return is_exact ? u : u + 0x7fffu + (u >> 16 & 1u);
}
/// 64 codes, the first 32 with one factor and the others with the second. Words of two codes give the even
/// values and the odd ones, and two bf16 values make a word again.
template <class F>
inline void decode_64(__m512i codes, float first, float second, bool is_exact, bf16* y) {
  const __m512i even = halves<F>(_mm512_slli_epi16(codes, 8));
  const __m512i odd = halves<F>(_mm512_and_si512(codes, _mm512_set1_epi16(static_cast<short>(0xff00))));
  auto join = [&](__m256i e, __m256i o, float factor, bf16* to) {
    const UVec a = upper_bf16(products(e, factor), is_exact), b = upper_bf16(products(o, factor), is_exact);
    const UVec words = a >> 16 | (b & 0xffff0000u);
    __builtin_memcpy(static_cast<void*>(to), &words, sizeof words);
  };
  join(lower(even), lower(odd), first, y);
  join(upper(even), upper(odd), second, y + 32);
}
template <class F>
inline void decode_64(__m512i codes, float first, float second, bool, float* y) {
  for (int half = 0; half < 2; ++half) {
    const __m512i h =
        halves<F>(_mm512_slli_epi16(_mm512_cvtepu8_epi16(half == 0 ? lower(codes) : upper(codes)), 8));
    store(y + half * 32, products(lower(h), half == 0 ? first : second));
    store(y + half * 32 + 16, products(upper(h), half == 0 ? first : second));
  }
}
inline bool is_power_of_two(float x) { return (bits_as<uint32_t>(x) & 0x7fffffu) == 0; }

/// About 20 instructions per 32 elements, 15 where inverses are powers of two.
template <class F, class T, class InverseOf>
inline int64_t decode_numbers(const uint8_t* codes, int64_t n, T* y, InverseOf&& inverse_of) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const float a = inverse_of(i), b = inverse_of(i + 32);
    float first, second;
    const __m512i bytes = _mm512_loadu_si512(codes + i);
    if (!factor_of<F>(a, first) || !factor_of<F>(b, second) || !are_numbers<F>(bytes)) break;
    decode_64<F>(bytes, first, second, is_power_of_two(a) && is_power_of_two(b), y + i);
  }
  return i;
}

#else

template <class F, class T, class InverseOf>
inline int64_t decode_numbers(const uint8_t*, int64_t, T*, InverseOf&&) {
  return 0;
}

#endif

/// A run of codes: 64 at a time if possible, else one group of at most 32 exactly.
template <class F, class T, class InverseOf>
inline void decode_run(const uint8_t* codes, int64_t n, T* y, InverseOf&& inverse_of) {
  for (int64_t i = 0; i < n;) {
    i += decode_numbers<F>(codes + i, n - i, y + i, [&](int64_t at) { return inverse_of(i + at); });
    if (i == n) return;
    const int64_t rest = n - i < 32 ? n - i : 32;
    decode_exactly<F>(codes + i, rest, inverse_of(i), y + i);
    i += rest;
  }
}
template <class F, class T>
void decode_blocks(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, T* y) {
  if (block == 32) return decode_run<F>(codes, n, y, [&](int64_t i) { return inverses[i / 32]; });
  for (int64_t start = 0; start < n; start += block) {
    const float inverse = *inverses++;
    decode_run<F>(codes + start, n - start < block ? n - start : block, y + start,
                  [&](int64_t) { return inverse; });
  }
}
template <class T>
void decode(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, bool e5m2, void* y) {
  e5m2 ? decode_blocks<E5M2>(codes, n, block, inverses, static_cast<T*>(y))
       : decode_blocks<E4M3>(codes, n, block, inverses, static_cast<T*>(y));
}

/// 64 x 64 codes at a time, so that whole lines are read and written on both sides. Neither side is a stream
/// that the machine would prefetch, so the next tile's lines are prefetched meanwhile.
void transpose(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride, Rows block) {
  constexpr int kTile = kStripRows;
  for (int64_t c = 0; c < block.cols; c += kTile) {
    for (int64_t r = block.begin; r < block.end; r += kTile) {
      const bool is_last = r + kTile >= block.end;
      const int64_t next_r = is_last ? block.begin : r + kTile, next_c = is_last ? c + kTile : c;
      for (int64_t strip = c; strip < c + kTile && strip < block.cols; strip += kStripCols) {
        for (int64_t i = strip - c; i < strip - c + kStripCols; ++i) {
          __builtin_prefetch(from + (next_r + i) * from_stride + next_c);
          __builtin_prefetch(to + (next_c + i) * to_stride + next_r);
        }
        if (!(r + kTile > block.end || strip + kStripCols > block.cols)) {
          transpose_strip(from + r * from_stride + strip, from_stride, to + strip * to_stride + r, to_stride);
          continue;
        }
        for (int64_t i = r; i < r + kTile && i < block.end; ++i) {
          for (int64_t j = strip; j < strip + kStripCols && j < block.cols; ++j) {
            to[j * to_stride + i] = from[i * from_stride + j];
          }
        }
      }
    }
  }
}

}  // namespace

fp8::DecodeKernels decode_kernels() {
  return {.decode = {decode<float>, decode<bf16>}, .transpose = transpose};
}

}  // namespace ottava::cpu::OTTAVA_ISA
