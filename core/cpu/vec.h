#pragma once

// Sixteen floats at a time, for kernel files only: one AVX-512 register, two AVX2 registers or four of SSE or
// NEON (core/cpu/lanes.h), so that a kernel is written once.

#include "core/bf16.h"
#include "core/cpu/lanes.h"
#include "core/cpu/zip.h"

namespace ottava::cpu::OTTAVA_ISA {

inline constexpr int kLanes = 16;
using Vec = VectorOf<float, kLanes>;
using DVec = VectorOf<double, kLanes>;
using IVec = VectorOf<int32_t, kLanes>;
using UVec = VectorOf<uint32_t, kLanes>;
using HVec = VectorOf<uint16_t, kLanes>;
using BVec = VectorOf<uint8_t, kLanes>;

/// 0 to 15.
alignas(64) inline constexpr int32_t kLaneNumbers[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                             8, 9, 10, 11, 12, 13, 14, 15};
inline IVec lane_numbers() { return read_lanes<IVec>(kLaneNumbers); }

/// 16-bit numbers, bytes and floats to lanes of twice or four times the width, and the low bits of lanes.
#if defined(__AVX512BW__)
inline UVec widen(HVec h) { return bits_as<UVec>(_mm512_cvtepu16_epi32(bits_as<__m256i>(h))); }
inline UVec widen(BVec b) { return bits_as<UVec>(_mm512_cvtepu8_epi32(bits_as<__m128i>(b))); }
inline HVec narrow(UVec u) { return bits_as<HVec>(_mm512_cvtepi32_epi16(bits_as<__m512i>(u))); }
inline BVec narrow_to_bytes(UVec u) { return bits_as<BVec>(_mm512_cvtepi32_epi8(bits_as<__m512i>(u))); }
inline DVec widen(Vec v) {
  const __m512 all = bits_as<__m512>(v);
  return {bits_as<DVec::Half>(_mm512_cvtps_pd(_mm512_castps512_ps256(all))),
          bits_as<DVec::Half>(_mm512_cvtps_pd(_mm512_extractf32x8_ps(all, 1)))};
}
#elif defined(__AVX2__)
inline UVec widen(HVec h) {
  const __m256i all = bits_as<__m256i>(h);
  return {bits_as<UVec::Half>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(all))),
          bits_as<UVec::Half>(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(all, 1)))};
}
inline UVec widen(BVec b) {
  const __m128i all = bits_as<__m128i>(b);
  return {bits_as<UVec::Half>(_mm256_cvtepu8_epi32(all)),
          bits_as<UVec::Half>(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(all, all)))};
}
// Packing saturates: no lane is above what is kept of it.
inline HVec narrow(UVec u) {
  u &= 0xffffu;
  const __m256i quarters = _mm256_packus_epi32(bits_as<__m256i>(u.lower), bits_as<__m256i>(u.upper));
  return bits_as<HVec>(_mm256_permute4x64_epi64(quarters, 0xd8));
}
inline BVec narrow_to_bytes(UVec u) {
  const __m256i halves = bits_as<__m256i>(narrow(u & 0xffu));
  return bits_as<BVec>(_mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}
inline DVec::Half widen(Vec::Half v) {
  const __m256 all = bits_as<__m256>(v);
  return {bits_as<DVec::Half::Half>(_mm256_cvtps_pd(_mm256_castps256_ps128(all))),
          bits_as<DVec::Half::Half>(_mm256_cvtps_pd(_mm256_extractf128_ps(all, 1)))};
}
inline DVec widen(Vec v) { return {widen(v.lower), widen(v.upper)}; }
#else
/// Lanes of twice the width, zero above.
template <class To, class V>
inline Two<To> widened(V v) {
  return {bits_as<To>(zip_low(v, V{})), bits_as<To>(zip_high(v, V{}))};
}
/// The lower halves of all lanes of a and of b.
template <class To, class V>
inline To narrowed(V a, V b) {
  constexpr int n = kLanesOf<To>;
#define OTTAVA_LANE(i) (2 * (i))
  OTTAVA_SHUFFLED(bits_as<To>(a), bits_as<To>(b), OTTAVA_LANE)
#undef OTTAVA_LANE
}
inline UVec widen(HVec h) {
  using Register = UVec::Half::Half;
  return {widened<Register>(h.lower), widened<Register>(h.upper)};
}
inline UVec widen(BVec b) { return widen(widened<HVec::Half>(b)); }
inline HVec narrow(UVec u) {
  return {narrowed<HVec::Half>(u.lower.lower, u.lower.upper),
          narrowed<HVec::Half>(u.upper.lower, u.upper.upper)};
}
inline BVec narrow_to_bytes(UVec u) {
  const HVec h = narrow(u);
  return narrowed<BVec>(h.lower, h.upper);
}
inline auto widen(VectorOf<float, 4> v) {
  const VectorOf<double, 2> lower = {v[0], v[1]}, upper = {v[2], v[3]};
  return Two{lower, upper};
}
inline DVec widen(Vec v) {
  return {{widen(v.lower.lower), widen(v.lower.upper)}, {widen(v.upper.lower), widen(v.upper.upper)}};
}
#endif

/// x - 0 is x for every x, but 0 + x is not (-0): the compiler would have to keep an addition.
inline Vec splat(float x) { return x - Vec{}; }

/// a b + c, rounded once where the set has fused multiply-adds. The compiler makes the same of the operators,
/// but below -O2 it does not.
inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return bits_as<Vec>(_mm512_fmadd_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c)));
#elif defined(__FMA__)
  return by_register(
      [](auto x, auto y, auto z) {
        return bits_as<decltype(x)>(
            _mm256_fmadd_ps(bits_as<__m256>(x), bits_as<__m256>(y), bits_as<__m256>(z)));
      },
      a, b, c);
#else
  return a * b + c;
#endif
}

/// Begins to bring what a loop reads 8 KiB later into the L2 cache: by itself a processor fetches no further
/// than to the end of a page of 4 KiB.
inline void fetch_ahead(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + 8192, 0, 2); }
/// Begins to bring all of `bytes` at p.
inline void fetch(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i, 0, 2);
}
/// The same of what a loop writes, of which no other core may keep a copy.
inline void fetch_target(void* p, int64_t bytes) {
  for (char *at = static_cast<char*>(p), *end = at + bytes; at < end; at += 64) {
#if defined(__AVX2__)  // without a flag of the compiler's, for processors that do not know it do nothing
    asm volatile("prefetchw (%0)" : : "r"(at));
#else
    __builtin_prefetch(at, 1, 2);
#endif
  }
}
inline void fetch_target_ahead(void* p) { fetch_target(static_cast<char*>(p) + 8192, 1); }

/// Loads and stores of sixteen elements, as floats.
inline Vec load(const float* p) { return read_lanes<Vec>(p); }
inline Vec load(const bf16* p) { return bits_as<Vec>(widen(read_lanes<HVec>(p)) << 16); }

/// All bits set where a > limit, both below 2^31, and a choice by such a mask. Neither uses a comparison that
/// any set would lower lane by lane.
inline UVec above(UVec a, uint32_t limit) { return bits_as<UVec>(bits_as<IVec>(limit - a) >> 31); }
inline UVec select(UVec mask, UVec a, UVec b) { return (mask & a) | (~mask & b); }
inline Vec select(UVec mask, Vec a, Vec b) {
  return bits_as<Vec>(select(mask, bits_as<UVec>(a), bits_as<UVec>(b)));
}

/// Round to nearest even, NaN kept: the same bits as bf16(float).
inline HVec to_bf16(Vec v) {
  const UVec u = bits_as<UVec>(v), rounded = u + 0x7fffu + ((u >> 16) & 1u);
#if defined(__AVX512F__)
  const __m512 floats = bits_as<__m512>(v);
  const __m512i kept =
      _mm512_mask_or_epi32(bits_as<__m512i>(rounded), _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q),
                           bits_as<__m512i>(u), _mm512_set1_epi32(0x400000));
  return narrow(bits_as<UVec>(kept) >> 16);
#else
  return narrow(select(above(u & 0x7fffffffu, 0x7f800000u), u | 0x400000u, rounded) >> 16);
#endif
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

inline void store(float* p, Vec v) { write_lanes(p, v); }
inline void store(bf16* p, Vec v) { write_lanes(p, to_bf16(v)); }

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
inline void store_bits(bf16* p, HVec h, Whole) { write_lanes(p, h); }
inline void store_bits(bf16* p, HVec h, Part part) {
  __builtin_memcpy(static_cast<void*>(p), &h, part.n * sizeof(bf16));
}
/// v in the lanes that exist, `other` in the rest.
inline Vec keep(Vec v, Whole, float) { return v; }
inline Vec keep(Vec v, Part part, float other) {
  return select(bits_as<UVec>(lane_numbers() < part.n), v, splat(other));
}

/// Calls body(offset, Whole{}) for each full Vec of [0, n), then body(offset, Part{rest}) if something is
/// left.
template <class Body>
inline void for_each_vec(int64_t n, Body&& body) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) body(i, Whole{});
  if (whole < n) body(whole, Part{static_cast<int>(n - whole)});
}

/// All bits where a < b; none where one of them is NaN.
inline UVec below(Vec a, Vec b) { return bits_as<UVec>(a < b); }
inline UVec is_nan(Vec a) { return bits_as<UVec>(a != a); }
inline Vec abs(Vec v) {
  UVec u = bits_as<UVec>(v) & 0x7fffffffu;
  return bits_as<Vec>(u);
}
inline Vec sqrt(Vec v) {
  return by_register(
      [](auto r) {
#if defined(__AVX512F__)
        return bits_as<decltype(r)>(_mm512_sqrt_ps(bits_as<__m512>(r)));
#elif defined(__AVX2__)
        return bits_as<decltype(r)>(_mm256_sqrt_ps(bits_as<__m256>(r)));
#elif defined(__x86_64__)
        return bits_as<decltype(r)>(_mm_sqrt_ps(bits_as<__m128>(r)));
#else
        for (int i = 0; i < kLanesOf<decltype(r)>; ++i) r[i] = __builtin_sqrtf(r[i]);
        return r;
#endif
      },
      v);
}
/// |v| as its bit pattern. Unsigned comparison orders it like the value, with NaN above everything, so a
/// maximum never loses a NaN.
inline UVec abs_bits(Vec v) { return bits_as<UVec>(v) & 0x7fffffffu; }
inline UVec max_bits(UVec a, UVec b) { return max(a, b); }
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

}  // namespace ottava::cpu::OTTAVA_ISA
