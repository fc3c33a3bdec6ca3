#pragma once

#include <cstddef>

#include "core/dtype.h"

namespace ottava {

/// IEEE half (5 exponent bits, 10 mantissa bits), as bits. To half: round to nearest, ties to even; what
/// rounds past 65504 becomes infinity; NaN stays NaN.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);

/// True for f32, bf16 and f16, the element types that weights are stored in.
bool is_weight_dtype(DType dtype);

/// Elements of a type that is known only at run time.
struct FloatSpan {
  DType dtype = DType::f32;
  void* data = nullptr;
};
struct ConstFloatSpan {
  DType dtype = DType::f32;
  const void* data = nullptr;
};
/// Converts `count` elements between f32, bf16 and f16, rounding to nearest even; a plain copy if the types
/// agree. The ranges must not overlap. Throws ShapeError for other types.
void cast_floats(ConstFloatSpan from, FloatSpan to, size_t count);

/// Index of the first element that is not finite, or `count`.
size_t find_non_finite(ConstFloatSpan values, size_t count);

}  // namespace ottava
