#pragma once

// Exponentials, for kernel files only.

#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

inline constexpr float kLog2e = 1.44269504088896341f;

/// e^x to 2 ulp for x in [-87, 88]; 0 below -87.34, infinity above 88.73. NaN stays NaN. Cody-Waite reduction
/// by ln 2 and a degree-6 polynomial (the Cephes scheme).
[[gnu::always_inline]] inline Vec exp(Vec x) {
  // A NaN is the second operand, which passes through.
  const Vec clamped = max(splat(-88.0f), min(splat(89.0f), x));
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

/// 2^y to 4 ulp for y in [-126, 127]. Smaller y give 2^-126. NaN stays NaN. Computed as 2^n 2^r with |r| <=
/// 1/2, the latter by interpolation at Chebyshev's nodes (error 2e-07). AVX2 and AVX-512 give the same bits,
/// however the compiler optimises.
[[gnu::always_inline]] inline Vec exp2(Vec y) {
  y = max(splat(-126.0f), y);
#if defined(__AVX512F__)
  const Vec r =
      bits_as<Vec>(_mm512_reduce_ps(bits_as<__m512>(y), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  // Adding 1.5 * 2^23 leaves n in the low mantissa bits; 127 more make it an exponent.
  const Vec shifted = y + (12582912.0f + 127.0f);
  const Vec r = y - (shifted - (12582912.0f + 127.0f));
#endif
  Vec p = multiply_add(r, splat(0.00133813021f), splat(0.00966636837f));
  p = multiply_add(p, r, splat(0.0555038117f));
  p = multiply_add(p, r, splat(0.240223497f));
  p = multiply_add(p, r, splat(0.693147182f));
  p = multiply_add(p, r, splat(1.0f));
#if defined(__AVX512F__)
  return bits_as<Vec>(_mm512_scalef_ps(bits_as<__m512>(p), bits_as<__m512>(y - r)));
#else
  const UVec power = bits_as<UVec>(shifted) << 23;
  return p * bits_as<Vec>(power);
#endif
}

/// The same for results that are rounded to bf16: to 3e-6, a thousandth of that rounding's error. With
/// AVX-512 6 instructions in place of 9: 2^floor(y) times the minimax polynomial of degree 4. There y may be
/// anything: smaller y than -126 give subnormal numbers, for which NoSubnormals has zero, and 0, larger ones
/// than 127 infinity.
[[gnu::always_inline]] inline Vec exp2_for_bf16(Vec y) {
#if defined(__AVX512F__)
  const Vec r = bits_as<Vec>(_mm512_reduce_ps(bits_as<__m512>(y), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  Vec p = r * 0.0135341678f + 0.0520114601f;
  p = p * r + 0.241442755f;
  p = p * r + 0.693003833f;
  p = p * r + 1.00000262f;
  return bits_as<Vec>(_mm512_scalef_ps(bits_as<__m512>(p), bits_as<__m512>(y)));
#else
  return exp2(y);
#endif
}

}  // namespace ottava::cpu::OTTAVA_ISA
