#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava::fp8 {

/// largest = max(largest, current), then current = 0: a micro-batch's amaxes join the step's, and its slots
/// are ready to be raised again. Throws ShapeError.
struct FoldAmax {
  Tensor current, largest;  ///< both u32 [slots], bits of amaxes
};
void fold_amax(Stream& stream, const FoldAmax& a);

/// Raises to 1 the flags of amaxes that are infinite or NaN: quantizing with an older scale does not see
/// these. Throws ShapeError.
struct FlagNonFinite {
  Tensor amaxes, flags;  ///< both u32 [slots]
};
void flag_non_finite(Stream& stream, const FlagNonFinite& a);

/// Sets sum_of_squares (f64 [1]) to NaN if any flag (u32 [n]) is raised. Saturation hides an infinity from
/// the gradient norm, and it is through the norm that every rank learns to skip the step. Throws ShapeError.
void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares);

}  // namespace ottava::fp8
