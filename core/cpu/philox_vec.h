#pragma once

// Sixteen Philox counters at a time, for kernel files: the same bits as PhiloxStream of core/philox.h.

#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

using UWide = VectorOf<uint64_t, kLanes / 2>;

/// The 64-bit products of the even lanes with b. Left to the compiler this would be a 64 by 64 bit product,
/// at three times the cost.
inline UWide multiply_even(UVec a, uint32_t b) {
#if defined(__AVX512F__)
  return bits_as<UWide>(_mm512_mul_epu32(bits_as<__m512i>(a), _mm512_set1_epi64(b)));
#elif defined(__AVX2__)
  const __m256i factor = _mm256_set1_epi64x(b);
  return {bits_as<UWide::Half>(_mm256_mul_epu32(bits_as<__m256i>(a.lower), factor)),
          bits_as<UWide::Half>(_mm256_mul_epu32(bits_as<__m256i>(a.upper), factor))};
#else
  return (bits_as<UWide>(a) & 0xffffffffu) * uint64_t{b};
#endif
}

struct Product {
  UVec low, high;
};
inline Product multiply(UVec a, uint32_t b) {
  UWide even = multiply_even(a, b), odd = multiply_even(bits_as<UVec>(bits_as<UWide>(a) >> 32), b);
  const uint64_t kLow = 0xffffffffu;
  return {bits_as<UVec>((even & kLow) | (odd << 32)), bits_as<UVec>((even >> 32) | (odd & ~kLow))};
}

/// words[4 i + j] = word j of PhiloxStream{seed, stream}.bits(first + i), i in [0, 16).
inline void philox_16(uint64_t seed, uint64_t stream, uint64_t first, uint32_t* words) {
  const UVec lane = bits_as<UVec>(lane_numbers());
  UVec c0 = lane + static_cast<uint32_t>(first);
  UVec carry = bits_as<UVec>(c0 < lane) & 1u;
  UVec c1 = carry + static_cast<uint32_t>(first >> 32);
  UVec c2 = UVec{} + static_cast<uint32_t>(stream), c3 = UVec{} + static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Product a = multiply(c0, 0xD2511F53u), b = multiply(c2, 0xCD9E8D57u);
    c0 = b.high ^ c1 ^ k0;
    c1 = b.low;
    c2 = a.high ^ c3 ^ k1;
    c3 = a.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  // Four columns of 16 to 16 rows of four.
  const UVec low01 = zip_low(c0, c1), high01 = zip_high(c0, c1);
  const UVec low23 = zip_low(c2, c3), high23 = zip_high(c2, c3);
  write_lanes(words, zip_pairs_low(low01, low23));
  write_lanes(words + kLanes, zip_pairs_high(low01, low23));
  write_lanes(words + 2 * kLanes, zip_pairs_low(high01, high23));
  write_lanes(words + 3 * kLanes, zip_pairs_high(high01, high23));
}

}  // namespace ottava::cpu::OTTAVA_ISA
