#include "core/float8/codec_kernels.h"
#include "core/float8/codec_vec.h"

// Ceiling: memory bandwidth: 2 bytes read per element; two instructions per 32 elements, and three more for
// each block of a row.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

/// |x| of 32 bf16 values as 16-bit integers, ordered like the values and NaN above all.
constexpr int kWords = 32;
using Words = VectorOf<int16_t, kWords>;

inline Words magnitudes(const bf16* p) { return read_lanes<Words>(p) & 0x7fff; }
inline Words magnitudes(const bf16* p, int64_t n) {
  bf16 buffer[kWords] = {};
  __builtin_memcpy(static_cast<void*>(buffer), p, n * sizeof *p);
  return magnitudes(buffer);
}
inline Words larger(Words a, Words b) { return max(a, b); }

inline Words largest_words(const bf16* x, int64_t n) {
  Words a{}, b{};
  int64_t i = 0;
  for (; i + 2 * kWords <= n; i += 2 * kWords) {
    a = larger(a, magnitudes(x + i));
    b = larger(b, magnitudes(x + i + kWords));
  }
  if (i + kWords <= n) a = larger(a, magnitudes(x + i)), i += kWords;
  if (i < n) b = larger(b, magnitudes(x + i, n - i));
  return larger(a, b);
}

/// The larger of neighbours, as bits of floats.
inline UVec bits_of(Words v) {
  const UVec u = bits_as<UVec>(v);
  return max_bits(u << 16, u & 0xffff0000u);
}
#if defined(__AVX512BW__)
template <class Shuffle>
inline __m512i merge(__m512i a, __m512i b, Shuffle&& shuffle) {
  return _mm512_max_epu16(shuffle(a, b, 0), shuffle(a, b, 1));
}
/// Lane i of the result: the largest of v[i]. A tree that halves registers four times: 45 instructions.
inline UVec largest_of_each(const Words* v) {
  __m512i m[16];
  __builtin_memcpy(m, v, sizeof m);
  for (int i = 0; i < 8; ++i) {
    m[i] = merge(m[2 * i], m[2 * i + 1], [](__m512i a, __m512i b, int part) {
      return part == 0 ? _mm512_shuffle_i64x2(a, b, 0x44) : _mm512_shuffle_i64x2(a, b, 0xee);
    });
  }
  for (int i = 0; i < 4; ++i) {
    m[i] = merge(m[2 * i], m[2 * i + 1], [](__m512i a, __m512i b, int part) {
      return part == 0 ? _mm512_shuffle_i64x2(a, b, 0x88) : _mm512_shuffle_i64x2(a, b, 0xdd);
    });
  }
  // 128 bits for each of four vectors, then 64 for each of eight, interleaved.
  for (int i = 0; i < 2; ++i) {
    m[i] = merge(m[2 * i], m[2 * i + 1], [](__m512i a, __m512i b, int part) {
      return part == 0 ? _mm512_unpacklo_epi64(a, b) : _mm512_unpackhi_epi64(a, b);
    });
  }
  const __m512i last = merge(m[0], m[1], [](__m512i a, __m512i b, int part) {
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_castps_si512(part == 0 ? _mm512_shuffle_ps(x, y, 0x88) : _mm512_shuffle_ps(x, y, 0xdd));
  });
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return bits_of(bits_as<Words>(_mm512_permutexvar_epi32(order, last)));
}
#else
inline UVec largest_of_each(const Words* v) {
  alignas(64) uint32_t largest[kLanes];
  for (int i = 0; i < kLanes; ++i) {
#if defined(__AVX2__)
    const __m256i words = _mm256_max_epu16(bits_as<__m256i>(v[i].lower), bits_as<__m256i>(v[i].upper));
    const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi32(-1)));
    largest[i] = (~static_cast<uint32_t>(_mm_cvtsi128_si32(smallest)) & 0xffffu) << 16;
#else
    largest[i] = max_lane(bits_of(v[i]));
#endif
  }
  return read_lanes<UVec>(largest);
}
#endif

/// Sixteen blocks, or the last of a row.
inline UVec largest_of_blocks(const bf16* x, int64_t n, int64_t block) {
  Words each[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const int64_t start = i * block, rest = n - start;
    each[i] = rest > 0 ? largest_words(x + start, rest < block ? rest : block) : Words{};
  }
  return largest_of_each(each);
}
template <int kBlock>
inline UVec largest_of_whole_blocks(const bf16* x) {
  Words each[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    each[i] = magnitudes(x + i * kBlock);
    for (int w = kWords; w < kBlock; w += kWords) each[i] = larger(each[i], magnitudes(x + i * kBlock + w));
  }
  return largest_of_each(each);
}

void blocks(const bf16* x, int64_t n, int64_t block, uint32_t* amax) {
  if (n <= block) {
    *amax = max_lane(bits_of(largest_words(x, n)));
    return;
  }
  const int64_t group = kLanes * block;
  for (int64_t start = 0; start < n; start += group, amax += kLanes) {
    const int64_t rest = n - start;
    UVec bits;
    if (rest >= group && block == 32) {
      bits = largest_of_whole_blocks<32>(x + start);
    } else if (rest >= group && block == 128) {
      bits = largest_of_whole_blocks<128>(x + start);
    } else {
      bits = largest_of_blocks(x + start, rest, block);
    }
    write_lanes(amax, bits);
  }
}

void rows(const bf16* x, int64_t stride, int64_t count, int64_t n, uint32_t* amax) {
  Words each[kLanes];
  if (count == kLanes && n == 128) {
    for (int i = 0; i < kLanes; ++i) {
      const bf16* row = x + i * stride;
      each[i] = larger(larger(magnitudes(row), magnitudes(row + kWords)),
                       larger(magnitudes(row + 2 * kWords), magnitudes(row + 3 * kWords)));
    }
  } else {
    for (int i = 0; i < kLanes; ++i) each[i] = i < count ? largest_words(x + i * stride, n) : Words{};
  }
  const UVec bits = largest_of_each(each);
  write_lanes(amax, bits);
}

inline void store_bits(uint32_t* amax, Words v) {
  uint16_t words[kWords];
  write_lanes(words, v);
  write_lanes(amax, widen(read_lanes<HVec>(words)) << 16);
  write_lanes(amax + kLanes, widen(read_lanes<HVec>(words + kLanes)) << 16);
}

/// Of whole vectors, into words. Eight rows at a time: so few streams of reads the processor fetches on its
/// own.
inline void raise_words(const bf16* x, int64_t stride, int64_t rows, int64_t cols, uint16_t* words) {
  constexpr int kRows = 8, kWide = 4;
  for (int64_t r = 0; r < rows; r += kRows) {
    const int64_t count = rows - r < kRows ? rows - r : kRows;
    for (int64_t c = 0; c < cols; c += kWide * kWords) {
      Words v[kWide];
      for (int k = 0; k < kWide; ++k) v[k] = read_lanes<Words>(words + c + k * kWords);
      for (int64_t i = 0; i < count; ++i) {
        const bf16* p = x + (r + i) * stride + c;
        for (int k = 0; k < kWide; ++k) v[k] = larger(v[k], magnitudes(p + k * kWords));
      }
      for (int k = 0; k < kWide; ++k) write_lanes(words + c + k * kWords, v[k]);
    }
  }
}

uint32_t columns(const bf16* x, int64_t stride, Rows rows, uint32_t* amax) {
  constexpr int64_t kStrip = 2048, kUnit = 4 * kWords;
  Words largest{};
  for (int64_t start = 0; start < rows.cols; start += kStrip) {
    alignas(64) uint16_t words[kStrip] = {};
    const int64_t cols = rows.cols - start < kStrip ? rows.cols - start : kStrip,
                  whole = cols / kUnit * kUnit;
    const bf16* from = x + rows.begin * stride + start;
    raise_words(from, stride, rows.end - rows.begin, whole, words);
    for (int64_t c = whole; c < cols; c += kWords) {
      const int64_t n = cols - c < kWords ? cols - c : kWords;
      Words v{};
      for (int64_t r = 0; r < rows.end - rows.begin; ++r) v = larger(v, magnitudes(from + r * stride + c, n));
      write_lanes(words + c, v);
    }
    for (int64_t c = 0; c < cols; c += kWords) {
      const Words v = read_lanes<Words>(words + c);
      largest = larger(largest, v);
      if (const int64_t n = cols - c; n < kWords) {
        uint32_t bits[kWords];
        store_bits(bits, v);
        __builtin_memcpy(amax + start + c, bits, n * sizeof *bits);
      } else {
        store_bits(amax + start + c, v);
      }
    }
  }
  return max_lane(bits_of(largest));
}

/// The power of two below max / amax is one exponent less the other, and one less where the amax has the
/// larger fraction: the division, correctly rounded, cannot reach the power above.
inline UVec inverse_power_of_two(UVec amax, float max) {
  const uint32_t bits = bits_as<uint32_t>(max), fraction = bits & 0x7fffffu;
  return ((amax + (0x7fffffu - fraction)) & 0x7f800000u) - ((bits & 0x7f800000u) - 0x3f800000u);
}

uint32_t scales(const uint32_t* amax, int64_t n, float max, bool power_of_two, float* scales, float* inverses,
                uint8_t* exponents) {
  const IVec lane = lane_numbers();
  const uint32_t smallest = bits_as<uint32_t>(fp8::kSmallestAmax);
  UVec largest{};
  for (int64_t i = 0; i < n; i += kLanes) {
    UVec bits = read_lanes<UVec>(amax + i);
    if (n - i < kLanes) bits &= bits_as<UVec>((lane - static_cast<int>(n - i)) >> 31);
    largest = max_bits(largest, bits);
    const UVec finite = ~above(bits, fp8::kInfinityBits - 1);
    const UVec group = at_least(bits, smallest);
    Vec scale, inverse;
    if (power_of_two) {
      const UVec exponent = inverse_power_of_two(group, max);
      inverse = bits_as<Vec>(exponent);
      scale = bits_as<Vec>((254u << 23) - exponent);
    } else {
      scale = max / bits_as<Vec>(group);
      inverse = 1.0f / scale;
    }
    const UVec one = bits_as<UVec>(splat(1)) & ~finite;
    scale = bits_as<Vec>((bits_as<UVec>(scale) & finite) | one);
    inverse = bits_as<Vec>((bits_as<UVec>(inverse) & finite) | one);
    store(scales + i, scale);
    store(inverses + i, inverse);
    if (exponents) store_codes(exponents + i, bits_as<UVec>(inverse) >> 23, Whole{});
  }
  return max_lane(largest);
}

#if defined(__AVX512BW__)
/// Rounded to bf16 like core/bf16.h, in the lower half of each lane.
inline __m512i rounded(const float* x) {
  const __m512 v = _mm512_loadu_ps(x);
  const __m512i u = _mm512_castps_si512(v),
                odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_srli_epi32(_mm512_mask_or_epi32(sum, is_nan, u, _mm512_set1_epi32(0x400000)), 16);
}
#endif

/// 16 instructions per 32 elements with AVX-512.
void round(const float* x, int64_t n, bf16* y) {
  int64_t i = 0;
#if defined(__AVX512BW__)
  for (; i + kWords <= n; i += kWords) {
    const __m512i words = _mm512_packus_epi32(rounded(x + i), rounded(x + i + kLanes));
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_storeu_si512(y + i, _mm512_permutexvar_epi64(order, words));
  }
#endif
  for_each_vec(n - i, [&](int64_t c, auto lanes) { store(y + i + c, load(x + i + c, lanes), lanes); });
}

}  // namespace

fp8::AmaxKernels amax_kernels() {
  return {.round = round, .blocks = blocks, .rows = rows, .columns = columns, .scales = scales};
}

}  // namespace ottava::cpu::OTTAVA_ISA
