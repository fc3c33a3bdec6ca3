#pragma once

// Sixteen floats at a time, for kernel files only (those given to ottava_cpu_kernels). GCC's and Clang's
// vector extensions compile to one AVX-512 register, two AVX2 registers or four SSE registers, so a kernel is
// written once. Everything is in the instruction set's own namespace: nothing here may be merged with another
// set's copy.

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>  // only where the compiler's own lowering costs several times the one instruction
#endif

#include "core/bf16.h"

namespace ottava::cpu::OTTAVA_ISA {

inline constexpr int kLanes = 16;
typedef float Vec __attribute__((vector_size(64)));
typedef double DVec __attribute__((vector_size(128)));
typedef int32_t IVec __attribute__((vector_size(64)));
typedef uint32_t UVec __attribute__((vector_size(64)));
typedef uint16_t HVec __attribute__((vector_size(32)));

/// The same bits as another type.
template <class To, class From>
inline To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}

/// 16-bit numbers to 32-bit ones and back (the low halves).
inline UVec widen(HVec h) {
#if defined(__AVX512BW__)
  return bits_as<UVec>(_mm512_cvtepu16_epi32(bits_as<__m256i>(h)));
#else
  return __builtin_convertvector(h, UVec);
#endif
}
inline HVec narrow(UVec u) {
#if defined(__AVX512BW__)
  return bits_as<HVec>(_mm512_cvtepi32_epi16(bits_as<__m512i>(u)));
#else
  return __builtin_convertvector(u, HVec);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// A Vec is two registers here. GCC 12 lowers comparisons and shuffles of vectors wider than a register lane
// by lane, several times as long as these.
#define OTTAVA_VEC_IS_TWO_REGISTERS 1
struct Registers {
  __m256 lower, upper;
};
inline Registers registers_of(Vec v) { return bits_as<Registers>(v); }
inline Vec of_registers(__m256 lower, __m256 upper) { return bits_as<Vec>(Registers{lower, upper}); }
#endif

/// x - 0 is x whatever x is, while 0 + x is not: an addition would be left of that.
inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline Vec load(const bf16* p) {
  HVec h;
  __builtin_memcpy(&h, p, sizeof h);
  return bits_as<Vec>(widen(h) << 16);
}

/// All bits where a > limit, both below 2^31, and a choice by such a mask: no comparison that would be
/// lowered lane by lane in any set.
inline UVec above(UVec a, uint32_t limit) { return bits_as<UVec>(bits_as<IVec>(limit - a) >> 31); }
inline UVec select(UVec mask, UVec a, UVec b) { return (mask & a) | (~mask & b); }

/// Round to nearest even, NaN kept: the same bits as bf16(float).
inline HVec to_bf16(Vec v) {
  UVec u = bits_as<UVec>(v);
  UVec rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  UVec nan = (u >> 16) | 0x40u;
  return narrow(select(above(u & 0x7fffffffu, 0x7f800000u), nan, rounded));
}
/// The value that a store to T and a load from it would give.
template <class T>
inline Vec rounded_to(Vec v);
template <>
inline Vec rounded_to<float>(Vec v) {
  return v;
}
template <>
inline Vec rounded_to<bf16>(Vec v) {
  return bits_as<Vec>(widen(to_bf16(v)) << 16);
}

inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
inline void store(bf16* p, Vec v) {
  HVec h = to_bf16(v);
  __builtin_memcpy(static_cast<void*>(p), &h, sizeof h);
}

/// The first n < 16 elements; the other lanes read as zero and are not written.
template <class T>
inline Vec load_partial(const T* p, int n) {
  T buffer[kLanes];
  __builtin_memset(static_cast<void*>(buffer), 0, sizeof buffer);
  __builtin_memcpy(static_cast<void*>(buffer), p, n * sizeof(T));
  return load(buffer);
}
template <class T>
inline void store_partial(T* p, Vec v, int n) {
  T buffer[kLanes];
  store(buffer, v);
  __builtin_memcpy(static_cast<void*>(p), buffer, n * sizeof(T));
}

/// Which lanes of a Vec exist: all of them, or the first n at the end of a row. A kernel's body takes one or
/// the other and is written once.
struct Whole {};
struct Part {
  int n;
};
template <class T>
inline Vec load(const T* p, Whole) {
  return load(p);
}
template <class T>
inline Vec load(const T* p, Part part) {
  return load_partial(p, part.n);
}
template <class T>
inline void store(T* p, Vec v, Whole) {
  store(p, v);
}
template <class T>
inline void store(T* p, Vec v, Part part) {
  store_partial(p, v, part.n);
}
inline void store_bits(bf16* p, HVec h, Whole) { __builtin_memcpy(static_cast<void*>(p), &h, sizeof h); }
inline void store_bits(bf16* p, HVec h, Part part) {
  __builtin_memcpy(static_cast<void*>(p), &h, part.n * sizeof(bf16));
}
/// v in the lanes that exist, `other` elsewhere.
inline Vec keep(Vec v, Whole, float) { return v; }
inline Vec keep(Vec v, Part part, float other) {
  const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < part.n ? v : splat(other);
}

/// Calls body(offset, Whole{}) for each full Vec of [0, n), then body(offset, Part{rest}) if something is
/// left.
template <class Body>
inline void for_each_vec(int64_t n, Body&& body) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) body(i, Whole{});
  if (whole < n) body(whole, Part{static_cast<int>(n - whole)});
}

inline float sum(Vec v) {
  float a[kLanes];
  __builtin_memcpy(a, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}
inline DVec widen(Vec v) { return __builtin_convertvector(v, DVec); }
inline double sum(DVec v) {
  double a[kLanes];
  __builtin_memcpy(a, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}
/// Where one of the two is NaN, b.
inline Vec max(Vec a, Vec b) {
#if defined(OTTAVA_VEC_IS_TWO_REGISTERS)
  const Registers x = registers_of(a), y = registers_of(b);
  return of_registers(_mm256_max_ps(x.lower, y.lower), _mm256_max_ps(x.upper, y.upper));
#else
  return a > b ? a : b;
#endif
}
inline Vec min(Vec a, Vec b) {
#if defined(OTTAVA_VEC_IS_TWO_REGISTERS)
  const Registers x = registers_of(a), y = registers_of(b);
  return of_registers(_mm256_min_ps(x.lower, y.lower), _mm256_min_ps(x.upper, y.upper));
#else
  return a < b ? a : b;
#endif
}
/// All bits where a < b; none where one of them is NaN.
inline UVec below(Vec a, Vec b) {
#if defined(OTTAVA_VEC_IS_TWO_REGISTERS)
  const Registers x = registers_of(a), y = registers_of(b);
  return bits_as<UVec>(
      of_registers(_mm256_cmp_ps(x.lower, y.lower, _CMP_LT_OQ), _mm256_cmp_ps(x.upper, y.upper, _CMP_LT_OQ)));
#else
  return bits_as<UVec>(a < b);
#endif
}
inline UVec is_nan(Vec a) {
#if defined(OTTAVA_VEC_IS_TWO_REGISTERS)
  const Registers x = registers_of(a);
  return bits_as<UVec>(of_registers(_mm256_cmp_ps(x.lower, x.lower, _CMP_UNORD_Q),
                                    _mm256_cmp_ps(x.upper, x.upper, _CMP_UNORD_Q)));
#else
  return bits_as<UVec>(a != a);
#endif
}
inline Vec select(UVec mask, Vec a, Vec b) {
  return bits_as<Vec>(select(mask, bits_as<UVec>(a), bits_as<UVec>(b)));
}
inline float max_lane(Vec v) {
  float a[kLanes];
  __builtin_memcpy(a, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
  }
  return a[0];
}
inline Vec abs(Vec v) {
  UVec u = bits_as<UVec>(v) & 0x7fffffffu;
  return bits_as<Vec>(u);
}
inline Vec sqrt(Vec v) {
  float a[kLanes];
  __builtin_memcpy(a, &v, sizeof v);
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return load(a);
}
/// |v| as its bit pattern: unsigned comparison orders it like the value and NaN above everything, so that a
/// maximum over these never loses a NaN.
inline UVec abs_bits(Vec v) { return bits_as<UVec>(v) & 0x7fffffffu; }
inline UVec max_bits(UVec a, UVec b) { return a > b ? a : b; }
/// Stores v and raises amax to the bits of what is stored.
template <class Lanes>
inline void store_with_amax(float* p, Vec v, Lanes lanes, UVec& amax) {
  amax = max_bits(amax, abs_bits(keep(v, lanes, 0.0f)));
  store(p, v, lanes);
}
template <class Lanes>
inline void store_with_amax(bf16* p, Vec v, Lanes lanes, UVec& amax) {
  HVec h = to_bf16(keep(v, lanes, 0.0f));
  amax = max_bits(amax, widen(h) << 16 & 0x7fffffffu);
  store_bits(p, h, lanes);
}
inline uint32_t max_lane(UVec v) {
  uint32_t best = 0;
  for (int i = 0; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

/// e^x to 2 ulp for x in [-87, 88]; smaller x give 0, larger ones infinity. NaN stays NaN. Cody-Waite
/// reduction by ln 2 and a degree-6 polynomial (the Cephes scheme).
inline Vec exp(Vec x) {
  const float kLog2e = 1.44269504088896341f;
#if defined(__AVX512F__)  // the second operand is the one that a NaN passes through
  const __m512 low = _mm512_set1_ps(-88.0f), high = _mm512_set1_ps(89.0f);
  Vec clamped = bits_as<Vec>(_mm512_max_ps(low, _mm512_min_ps(high, bits_as<__m512>(x))));
#else
  Vec clamped = max(splat(-88.0f), min(splat(89.0f), x));
#endif
  Vec shifted =
      clamped * kLog2e + 12582912.0f;  // 1.5 * 2^23: the integer part lands in the low mantissa bits
  Vec n = shifted - 12582912.0f;
  Vec r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
  Vec y = bits_as<Vec>(_mm512_scalef_ps(bits_as<__m512>(p), bits_as<__m512>(n)));
  return x < -87.33654f ? Vec{} : y;
#else
  IVec k = bits_as<IVec>(shifted) - 0x4b400000;
  IVec half = k >> 1;  // two factors, so that 2^128 overflows to infinity and not into the sign
  IVec s1 = (half + 127) << 23, s2 = (k - half + 127) << 23;
  Vec y = p * bits_as<Vec>(s1) * bits_as<Vec>(s2);
  y = select(below(x, splat(-87.33654f)), Vec{}, y);
  return select(is_nan(x), x, y);
#endif
}

}  // namespace ottava::cpu::OTTAVA_ISA
