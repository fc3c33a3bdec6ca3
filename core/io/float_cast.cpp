#include "core/io/float_cast.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace ottava {
namespace {

struct Half {
  uint16_t bits;
  explicit Half(float value) : bits(float_to_half(value)) {}
  explicit operator float() const { return half_to_float(bits); }
};

template <class F>
decltype(auto) dispatch_weight(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<Half>();
    default:
      fail<ShapeError>("float_cast", "dtype is {}, expected f32, bf16 or f16", name_of(dtype));
  }
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

float half_to_float(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu,
           mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_half(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 0.5 leaves its bits, rounded to even, at the end of the
    // mantissa.
    float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void cast_floats(ConstFloatSpan from, FloatSpan to, size_t count) {
  dispatch_weight(from.dtype, [&]<class From>() {
    dispatch_weight(to.dtype, [&]<class To>() {
      if constexpr (std::is_same_v<From, To>) {
        if (count > 0) std::memcpy(to.data, from.data, count * sizeof(To));
      } else {
        auto* source = static_cast<const From*>(from.data);
        auto* target = static_cast<To*>(to.data);
        for (size_t i = 0; i < count; ++i) target[i] = static_cast<To>(static_cast<float>(source[i]));
      }
    });
  });
}

// A number whose exponent is all ones is infinite or NaN. Blocks are tested as a whole, which vectorizes.
size_t find_non_finite(ConstFloatSpan values, size_t count) {
  return dispatch_weight(values.dtype, [&]<class T>() {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    constexpr Bits kExponent = sizeof(T) == 4 ? 0x7f800000u : std::is_same_v<T, bf16> ? 0x7f80u : 0x7c00u;
    constexpr size_t kBlock = 1024;
    const auto is_bad = [](Bits bits) { return (bits & kExponent) == kExponent; };
    const auto* x = static_cast<const Bits*>(values.data);
    for (size_t begin = 0; begin < count; begin += kBlock) {
      const size_t end = std::min(begin + kBlock, count);
      Bits found = 0;
      for (size_t i = begin; i < end; ++i) found |= static_cast<Bits>(is_bad(x[i]));
      if (found) return static_cast<size_t>(std::find_if(x + begin, x + end, is_bad) - x);
    }
    return count;
  });
}

}  // namespace ottava
