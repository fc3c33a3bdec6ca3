#pragma once

// FP8 codes of sixteen floats at a time, for kernel files (core/cpu/vec.h): the same bits as
// core/float8/formats.h for every float.

#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

struct E4M3 {
  static constexpr int kMantissa = 3, kDrop = 23 - kMantissa;
  static constexpr uint32_t kRebias = (127 - 7) << 3, kMaxBits = 0x43e00000u, kMaxCode = 0x7e;
  static constexpr uint32_t kOverflowBits = 0x43e80001u;   // above 464
  static constexpr uint32_t kMinNormalBits = 0x3c800000u;  // 2^-6
  static constexpr float kMinNormal = 0x1p-6f, kStep = 0x1p-9f;
};
struct E5M2 {
  static constexpr int kMantissa = 2, kDrop = 23 - kMantissa;
  static constexpr uint32_t kRebias = (127 - 15) << 2, kMaxBits = 0x47600000u, kMaxCode = 0x7b;
  static constexpr uint32_t kOverflowBits = 0x47700000u;   // 61440
  static constexpr uint32_t kMinNormalBits = 0x38800000u;  // 2^-14
  static constexpr float kMinNormal = 0x1p-14f, kStep = 0x1p-16f;
};

/// The smaller and the larger of each lane and `limit`; all below 2^31.
inline UVec at_most(UVec a, uint32_t limit) {
#if defined(__AVX512F__)
  return bits_as<UVec>(_mm512_min_epu32(bits_as<__m512i>(a), _mm512_set1_epi32(static_cast<int>(limit))));
#else
  return select(above(a, limit), UVec{} + limit, a);
#endif
}
inline UVec at_least(UVec a, uint32_t limit) {
#if defined(__AVX512F__)
  return bits_as<UVec>(_mm512_max_epu32(bits_as<__m512i>(a), _mm512_set1_epi32(static_cast<int>(limit))));
#else
  return select(above(a, limit), a, UVec{} + limit);
#endif
}

/// Rounds a number by adding 2^23 steps of its binade (for subnormals, of the smallest normal binade). The
/// sum's low bits are then the number of steps, and each binade begins 2^mantissa codes after the one below.
template <class F>
inline UVec fp8_codes(Vec x) {
  const UVec u = bits_as<UVec>(x), magnitude = u & 0x7fffffffu;
  const UVec clamped = at_most(magnitude, F::kMaxBits);
  const UVec binade = at_least(clamped & 0x7f800000u, F::kMinNormalBits);
  const UVec steps = binade + (static_cast<uint32_t>(F::kDrop) << 23);
  const UVec sum = bits_as<UVec>(bits_as<Vec>(clamped) + bits_as<Vec>(steps));
  const UVec code = (sum - steps) + ((binade >> F::kDrop) - (F::kMinNormalBits >> F::kDrop));
  return select(above(magnitude, 0x7f800000u), UVec{} + 0x7fu, code | (u >> 24 & 0x80u));
}

inline Vec to_floats(IVec v) {
  return by_register(
      [](auto r) { return __builtin_convertvector(r, VectorOf<float, kLanesOf<decltype(r)>>); }, v);
}

template <class F>
inline Vec fp8_values(UVec codes) {
  const UVec magnitude = codes & 0x7fu, sign = (codes & 0x80u) << 24;
  const Vec subnormal = to_floats(bits_as<IVec>(magnitude)) * F::kStep;
  const UVec normal = (magnitude << F::kDrop) + (F::kRebias << F::kDrop);
  UVec value = select(above(magnitude, (1u << F::kMantissa) - 1), normal, bits_as<UVec>(subnormal));
  value = select(above(magnitude, F::kMaxCode), UVec{} + 0x7fc00000u, value);
  if constexpr (F::kMantissa == 2)
    value &= ~(above(magnitude, 0x7bu) & ~above(magnitude, 0x7cu) & 0x00400000u);
  return bits_as<Vec>(value | sign);
}

inline UVec load_codes(const uint8_t* p, Whole) { return widen(read_lanes<BVec>(p)); }
inline UVec load_codes(const uint8_t* p, Part part) {
  uint8_t buffer[kLanes] = {};
  __builtin_memcpy(buffer, p, part.n);
  return load_codes(buffer, Whole{});
}
inline void store_codes(uint8_t* p, UVec codes, Whole) { write_lanes(p, narrow_to_bytes(codes)); }
inline void store_codes(uint8_t* p, UVec codes, Part part) {
  const BVec b = narrow_to_bytes(codes);
  __builtin_memcpy(p, &b, part.n);
}

}  // namespace ottava::cpu::OTTAVA_ISA
