#pragma once

// Codes of bf16 values times a scale, for kernel files: sixteen at a time for every value, and thirty-two at
// a time for values that stay in range.

#include "core/float8/codec_kernels.h"
#include "core/float8/codec_vec.h"

namespace ottava::cpu::OTTAVA_ISA {

/// Losses as Quantize::counters defines them. 32-bit lanes do not overflow in a row of up to 2^31 vectors.
struct Losses {
  IVec underflow{}, saturation{};
  template <class F>
  void look(Vec x, Vec scaled, UVec codes) {
    underflow -= bits_as<IVec>(~above(codes & 0x7fu, 0) & above(abs_bits(x), 0));
    saturation -= bits_as<IVec>(above(abs_bits(scaled), F::kOverflowBits - 1));
  }
  void add_to(fp8::QuantizeCounts& counts) const {
    int32_t lost[2][kLanes];
    write_lanes(lost[0], underflow), write_lanes(lost[1], saturation);
    for (int i = 0; i < kLanes; ++i) counts.underflow += lost[0][i], counts.saturation += lost[1][i];
  }
};

/// n codes; each sixteen elements have the scale scale_of(index of the first). About 20 instructions per
/// sixteen.
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

/// In the low byte of each lane, the code of x (bits of floats) times scale, without its sign: bit 7 is
/// arbitrary. The products are in range, so there is no clamp and no test for NaN. 6 instructions per
/// sixteen. The product is rounded by adding 2^23 steps of its binade. The binade's shifted exponent is, up
/// to a constant, the code at which the binade begins; the steps carry that constant in their low bits. It is
/// even, so ties are rounded as without it.
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
/// The even and the odd ones of thirty-two bf16 values, as floats: bf16 is the upper half of a float.
inline __m512i even_floats(__m512i w) { return _mm512_slli_epi32(w, 16); }
inline __m512i odd_floats(__m512i w) {
  return _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}
/// mask ? a : b, bit by bit.
inline __m512i choose(uint32_t mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(static_cast<int>(mask)), 0xe4);
}

/// Codes of bf16 values that stay in range: registers of values and scales to registers of codes. Any scale.
template <class F>
struct FloatCoder {
  using Scale = __m512;
  static Scale splat(float scale) { return _mm512_set1_ps(scale); }

  /// Codes of values a and b, without their signs, in the order of packs: eight of a, eight of b and so on.
  static __m512i magnitudes(__m512i a, __m512i b, Scale scale_a, Scale scale_b) {
    return _mm512_packus_epi32(pairs(a, scale_a), pairs(b, scale_b));
  }

 private:
  /// Codes of thirty-two values: two in the low half of each lane, zeros above.
  static __m512i pairs(__m512i w, Scale scale) {
    const __m512i even = magnitude_codes<F>(even_floats(w), scale),
                  odd = magnitude_codes<F>(odd_floats(w), scale);
    const __m512i shifted = _mm512_maskz_slli_epi16(0x55555555u, odd, 8);
    // (even & 0xff) | shifted
    return _mm512_ternarylogic_epi32(even, shifted, _mm512_set1_epi32(0xff), 0xec);
  }
};

/// Scales of even and odd columns of thirty-two.
struct ColumnScales {
  __m512 even, odd;
  explicit ColumnScales(const float* scales) {
    const __m512 low = _mm512_loadu_ps(scales), high = _mm512_loadu_ps(scales + 16);
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_ps(low, evens, high);
    odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high);
  }
};
/// In each lane, the low bytes of four registers, the first one lowest.
inline __m512i join_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i low = choose(0xff, a, _mm512_slli_epi32(b, 8)),
                high = choose(0xff, c, _mm512_slli_epi32(d, 8));
  return choose(0xffff, low, _mm512_slli_epi32(high, 16));
}

#if defined(__AVX512FP16__)

/// magnitude_codes() to E4M3 for thirty-two bf16 values times powers of two, in the low byte of each word.
/// The bits of bf16 minus `down` (the exponents of both formats and of the scale) are those of fp16 with
/// three fewer bits of fraction. What lies below fp16's range is below half of E4M3's smallest number anyway.
/// 7 instructions. The sum's low byte holds the steps and its high byte four times the exponent; the code is
/// the first plus twice the second.
inline __m512i word_magnitude_codes(__m512i w, __m512i down) {
  constexpr int kMinNormal = (15 - 6) << 10;
  constexpr int kSteps =
      (15 + 7) << 10 | 128;  // 128: what makes a multiple of 256 of exponents that begin at the smallest
  const __m512i magnitudes = _mm512_and_si512(w, _mm512_set1_epi16(0x7fff));
  const __m512i v = _mm512_slli_epi16(_mm512_subs_epu16(magnitudes, down), 3);
  const __m512i exponent = _mm512_and_si512(v, _mm512_set1_epi16(0x7c00));
  const __m512i binade = _mm512_max_epi16(exponent, _mm512_set1_epi16(kMinNormal));
  const __m512h sum = _mm512_fmadd_ph(_mm512_castsi512_ph(binade),
                                      _mm512_castsi512_ph(_mm512_set1_epi16(kSteps)), _mm512_castsi512_ph(v));
  return _mm512_maddubs_epi16(_mm512_castph_si512(sum), _mm512_set1_epi16(0x0201));
}

/// `down` for a scale that is a power of two: 127 - 15 minus its exponent, in the place of bf16's exponent.
constexpr uint32_t kDownOfOne = (127 - 15 + 127) << 7;
inline __m512i down_of(float scale) {
  return _mm512_set1_epi16(static_cast<short>(kDownOfOne - (bits_as<uint32_t>(scale) >> 16)));
}
/// The same for thirty-two scales.
inline __m512i downs_of(const float* scales) {
  auto half = [](const float* p) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(p), 16));
  };
  const __m512i exponents = _mm512_inserti64x4(_mm512_castsi256_si512(half(scales)), half(scales + 16), 1);
  return _mm512_sub_epi16(_mm512_set1_epi16(static_cast<short>(kDownOfOne)), exponents);
}

/// E4M3 and powers of two, in arithmetic of 16 bits.
struct WordCoder {
  using Scale = __m512i;
  static Scale splat(float scale) { return down_of(scale); }
  static __m512i magnitudes(__m512i a, __m512i b, Scale down_a, Scale down_b) {
    const __m512i low = _mm512_set1_epi16(0xff);
    return _mm512_packus_epi16(_mm512_and_si512(word_magnitude_codes(a, down_a), low),
                               _mm512_and_si512(word_magnitude_codes(b, down_b), low));
  }
};

#endif

#endif

}  // namespace ottava::cpu::OTTAVA_ISA
