#include "core/io/float_cast.h"

#include <cmath>
#include <cstring>

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

size_t find_non_finite(ConstFloatSpan values, size_t count) {
  return dispatch_weight(values.dtype, [&]<class T>() {
    auto* x = static_cast<const T*>(values.data);
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(static_cast<float>(x[i]))) return i;
    }
    return count;
  });
}

}  // namespace ottava
