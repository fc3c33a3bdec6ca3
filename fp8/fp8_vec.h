#pragma once

// FP8 of sixteen floats at a time, for kernel files (core/cpu/vec.h): the same bits as fp8/formats.h.

#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

typedef uint8_t BVec __attribute__((vector_size(16)));

// Subnormals are rounded by adding 2^23 steps of theirs: the sum's low bits are the number of steps.
struct E4M3 {
  static constexpr int kMantissa = 3;
  static constexpr uint32_t kRebias = (127 - 7) << 3, kMaxBits = 0x43e00000u, kMaxCode = 0x7e;
  static constexpr uint32_t kOverflowBits = 0x43e80001u;  // above 464
  static constexpr float kMinNormal = 0x1p-6f, kSteps = 0x1p14f, kStep = 0x1p-9f;
};
struct E5M2 {
  static constexpr int kMantissa = 2;
  static constexpr uint32_t kRebias = (127 - 15) << 2, kMaxBits = 0x47600000u, kMaxCode = 0x7b;
  static constexpr uint32_t kOverflowBits = 0x47700000u;  // 61440
  static constexpr float kMinNormal = 0x1p-14f, kSteps = 0x1p7f, kStep = 0x1p-16f;
};

template <class F>
inline UVec fp8_codes(Vec x) {
  constexpr int kDrop = 23 - F::kMantissa;
  const UVec u = bits_as<UVec>(x), magnitude = u & 0x7fffffffu;
  const UVec clamped = magnitude < F::kMaxBits ? magnitude : UVec{} + F::kMaxBits;
  const UVec normal =
      ((clamped + ((1u << (kDrop - 1)) - 1u) + (clamped >> kDrop & 1u)) >> kDrop) - F::kRebias;
  const UVec subnormal = bits_as<UVec>(bits_as<Vec>(clamped) + F::kSteps) - bits_as<UVec>(splat(F::kSteps));
  const UVec code = (bits_as<Vec>(clamped) < F::kMinNormal ? subnormal : normal) | (u >> 24 & 0x80u);
  return magnitude > 0x7f800000u ? UVec{} + 0x7fu : code;
}

template <class F>
inline Vec fp8_values(UVec codes) {
  const UVec magnitude = codes & 0x7fu, sign = (codes & 0x80u) << 24;
  const Vec subnormal = __builtin_convertvector(bits_as<IVec>(magnitude), Vec) * F::kStep;
  const UVec normal = (magnitude << (23 - F::kMantissa)) + (F::kRebias << (23 - F::kMantissa));
  UVec value = magnitude < (1u << F::kMantissa) ? bits_as<UVec>(subnormal) : normal;
  const UVec special = UVec{} + 0x7fc00000u;
  value = magnitude > F::kMaxCode ? special : value;
  if constexpr (F::kMantissa == 2) value = magnitude == 0x7cu ? UVec{} + 0x7f800000u : value;
  return bits_as<Vec>(value | sign);
}

inline UVec load_codes(const uint8_t* p, Whole) {
  BVec b;
  __builtin_memcpy(&b, p, sizeof b);
#if defined(__AVX512F__)
  return bits_as<UVec>(_mm512_cvtepu8_epi32(bits_as<__m128i>(b)));
#else
  return __builtin_convertvector(b, UVec);
#endif
}
inline UVec load_codes(const uint8_t* p, Part part) {
  uint8_t buffer[kLanes] = {};
  __builtin_memcpy(buffer, p, static_cast<unsigned long>(part.n));
  return load_codes(buffer, Whole{});
}
inline BVec narrow_codes(UVec codes) {
#if defined(__AVX512F__)
  return bits_as<BVec>(_mm512_cvtepi32_epi8(bits_as<__m512i>(codes)));
#else
  return __builtin_convertvector(codes, BVec);
#endif
}
inline void store_codes(uint8_t* p, UVec codes, Whole) {
  const BVec b = narrow_codes(codes);
  __builtin_memcpy(p, &b, sizeof b);
}
inline void store_codes(uint8_t* p, UVec codes, Part part) {
  const BVec b = narrow_codes(codes);
  __builtin_memcpy(p, &b, static_cast<unsigned long>(part.n));
}

/// max_lane of core/cpu/vec.h, quick enough for blocks of two vectors.
inline uint32_t largest_lane(UVec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32(bits_as<__m512i>(v));
#else
  return max_lane(v);
#endif
}

/// What is quantized: the value as bf16 holds it.
template <class Lanes>
inline Vec load_as_bf16(const bf16* p, Lanes lanes) {
  return load(p, lanes);
}
template <class Lanes>
inline Vec load_as_bf16(const float* p, Lanes lanes) {
  return rounded_to<bf16>(load(p, lanes));
}

}  // namespace ottava::cpu::OTTAVA_ISA
