#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"

// The FP8 formats (arXiv:2209.05433), the MX scale byte, and the one formula that turns an amax into a scale.
// These scalar definitions are the reference: every kernel, on any device, gives the same bits. What is
// constexpr here also runs in CUDA kernels.
namespace ottava::fp8 {

/// E4M3: bias 7, no infinity, NaN 0x7f and 0xff. E5M2: bias 15, infinity 0x7c, NaN above. Both have
/// subnormals.
struct Format {
  int mantissa_bits;
  int bias;
  float max;       ///< largest finite number
  float overflow;  ///< smallest magnitude that would round past max, were it not saturated (E4M3: exclusive)
  uint8_t max_code;  ///< code of max
};
inline constexpr Format kE4M3{3, 7, 448.0f, 464.0f, 0x7e};
inline constexpr Format kE5M2{2, 15, 57344.0f, 61440.0f, 0x7b};
/// Throws ShapeError unless dtype is e4m3 or e5m2.
inline const Format& format_of(DType dtype) {
  if (dtype == DType::e4m3) return kE4M3;
  if (dtype == DType::e5m2) return kE5M2;
  fail<ShapeError>("fp8", "{} is not an FP8 format: expected e4m3 or e5m2", name_of(dtype));
}

/// The code of the nearest value, ties to even. Magnitudes past the largest number, infinity included, become
/// the largest number; NaN becomes 0x7f whatever its sign.
constexpr uint8_t encode(float x, const Format& f) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
  const uint32_t sign = u >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= std::bit_cast<uint32_t>(f.max)) return static_cast<uint8_t>(sign | f.max_code);
  const int drop = 23 - f.mantissa_bits;
  const uint32_t min_normal = static_cast<uint32_t>(128 - f.bias) << 23;
  if (magnitude < min_normal) {
    // Added to 2^23 subnormal steps, the sum's low mantissa bits are the rounded number of steps.
    const uint32_t steps = static_cast<uint32_t>(127 + 24 - f.bias - f.mantissa_bits) << 23;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(steps);
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - steps));
  }
  const uint32_t rounded = magnitude + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1u);
  return static_cast<uint8_t>(sign |
                              ((rounded >> drop) - (static_cast<uint32_t>(127 - f.bias) << f.mantissa_bits)));
}

/// The value of a code; exact.
constexpr float decode(uint8_t code, const Format& f) {
  const uint32_t magnitude = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
  if (magnitude > f.max_code) {
    const bool infinite = f.mantissa_bits == 2 && magnitude == 0x7c;
    return std::bit_cast<float>(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
  }
  float value;
  if (magnitude < 1u << f.mantissa_bits) {
    value = static_cast<float>(magnitude) *
            std::bit_cast<float>(static_cast<uint32_t>(128 - f.bias - f.mantissa_bits) << 23);
  } else {
    value = std::bit_cast<float>((magnitude << (23 - f.mantissa_bits)) +
                                 (static_cast<uint32_t>(127 - f.bias) << 23));
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

/// UE8M0: 2^(code - 127); 0xff is NaN. Only powers of two have a code; anything else is encoded as NaN.
constexpr uint8_t encode_e8m0(float power_of_two) {
  const uint32_t u = std::bit_cast<uint32_t>(power_of_two);
  if (u == 0x00400000u) return 0;  // 2^-127, a subnormal float
  const bool exact = (u & 0x807fffffu) == 0 && u != 0 && u != 0x7f800000u;
  return exact ? static_cast<uint8_t>(u >> 23) : uint8_t{0xff};
}
constexpr float decode_e8m0(uint8_t code) {
  if (code == 0xff) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

/// How a scale is rounded after the division.
enum class ScaleRounding : uint8_t { none, down_to_power_of_two };

/// A scale and its inverse: codes hold x * scale, and x is codes * inverse.
struct Scale {
  float scale = 1, inverse = 1;
  bool finite = true;  ///< false for a non-finite amax: the pair is then (1, 1) and the step must be skipped
};

/// A smaller amax counts as this one, so that an all-zero tensor has a finite scale.
inline constexpr float kSmallestAmax = 1e-12f;

/// Amax bits from here on are infinite or NaN.
inline constexpr uint32_t kInfinityBits = 0x7f800000u;

/// scale = max / max(amax, 1e-12), rounded down to a power of two if asked for; inverse = 1 / scale. IEEE
/// divisions. The amax comes as the bits of max |x|, in which a NaN survives a maximum.
constexpr Scale scale_from_amax(uint32_t amax_bits, float max, ScaleRounding rounding) {
  if (amax_bits >= kInfinityBits) return {1, 1, false};
  if (rounding == ScaleRounding::down_to_power_of_two) {
    // A quotient's power of two without the division: the difference of the exponents, and one less where the
    // divisor has the larger mantissa. A power of two's inverse has the opposite exponent.
    constexpr uint32_t kSmallest = std::bit_cast<uint32_t>(kSmallestAmax), kOne = 0x3f800000u;
    const uint32_t divisor = amax_bits > kSmallest ? amax_bits : kSmallest;
    const uint32_t scale = (std::bit_cast<uint32_t>(max) - divisor + kOne) & 0xff800000u;
    return {std::bit_cast<float>(scale), std::bit_cast<float>(2 * kOne - scale), true};
  }
  const float amax = std::bit_cast<float>(amax_bits);
  const float scale = max / (amax > kSmallestAmax ? amax : kSmallestAmax);
  return {scale, 1.0f / scale, true};
}
constexpr Scale scale_from_amax(uint32_t amax_bits, const Format& f,
                                ScaleRounding rounding = ScaleRounding::none) {
  return scale_from_amax(amax_bits, f.max, rounding);
}

}  // namespace ottava::fp8
