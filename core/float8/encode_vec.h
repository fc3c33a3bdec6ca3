#pragma once

// Codes of bf16 values times a scale, for kernel files: sixteen at a time for every value, and thirty-two at
// a time for values that stay in range.

#include "core/float8/codec_kernels.h"
#include "core/float8/fp8_vec.h"

namespace ottava::cpu::OTTAVA_ISA {

/// Losses as Quantize::counters has them; 32-bit lanes do not overflow in a row of up to 2^31 vectors.
struct Losses {
  IVec underflow{}, saturation{};
  template <class F>
  void look(Vec x, Vec scaled, UVec codes) {
    underflow -= ((codes & 0x7fu) == 0u) & (abs_bits(x) != 0u);
    saturation -= bits_as<IVec>(abs_bits(scaled) >= F::kOverflowBits);
  }
  void add_to(fp8::QuantizeCounts& counts) const {
    for (int i = 0; i < kLanes; ++i) {
      counts.underflow += underflow[i];
      counts.saturation += saturation[i];
    }
  }
};

/// n codes with scale_of(index of the first of sixteen), about 20 instructions per sixteen.
template <class F, bool kCount, class ScaleOf>
inline void encode_exactly(const bf16* x, int64_t n, uint8_t* out, Losses& losses, ScaleOf&& scale_of) {
  for_each_vec(n, [&](int64_t c, auto lanes) {
    const Vec v = load(x + c, lanes), scaled = v * scale_of(c);
    const UVec codes = fp8_codes<F>(scaled);
    if constexpr (kCount) losses.look<F>(v, scaled, codes);
    store_codes(out + c, codes, lanes);
  });
}

#if defined(__AVX512BW__) && defined(__AVX512DQ__)

/// In the low byte of each lane, the code of x (bits of floats) times scale without its sign, which is
/// whatever the seventh bit happens to be. No clamp and no test for NaN: the products are in range. 6
/// instructions per sixteen. The product is rounded by adding 2^23 steps of its binade, whose exponent,
/// shifted, is the code at which the binade begins, up to a constant; the steps carry that constant along in
/// their low bits. It is even, so that ties are rounded as without it.
template <class F>
inline __m512i magnitude_codes(__m512i x, __m512 scale) {
  constexpr uint32_t kFirst = F::kMinNormalBits >> F::kDrop;
  constexpr uint32_t kSteps = (127u + F::kDrop) << 23 | ((0u - kFirst) & 0xffu);
  static_assert(kSteps % 2 == 0);
  const __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(x), scale);
  const __m512i exponent =
      _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(static_cast<int>(0xff800000u)));
  // The larger magnitude with the sign of the first.
  const __m512 binade = _mm512_range_ps(_mm512_castsi512_ps(exponent), _mm512_set1_ps(F::kMinNormal), 0x3);
  const __m512 sum =
      _mm512_fmadd_ps(binade, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(kSteps))), v);
  return _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_srli_epi32(_mm512_castps_si512(binade), F::kDrop));
}
/// Of thirty-two values the even and the odd ones as floats: bf16 is the upper half of one.
inline __m512i even_floats(__m512i w) { return _mm512_slli_epi32(w, 16); }
inline __m512i odd_floats(__m512i w) {
  return _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}
/// mask ? a : b, bit by bit.
inline __m512i choose(uint32_t mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(static_cast<int>(mask)), 0xe4);
}

#endif

}  // namespace ottava::cpu::OTTAVA_ISA
