#pragma once

#include <bit>
#include <cstdint>

namespace ottava {

/// bfloat16: the upper half of an IEEE float. Storage only; arithmetic is done in float.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  /// Round to nearest, ties to even; NaN stays NaN (quiet), infinities stay.
  explicit bf16(float x) {
    uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static bf16 from_bits(uint16_t bits) {
    bf16 value;
    value.bits = bits;
    return value;
  }
};
static_assert(sizeof(bf16) == 2);

}  // namespace ottava
