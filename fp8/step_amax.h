#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava::fp8 {

/// largest = max(largest, current), then current = 0. Both u32 [slots], bits of amaxes: what a micro-batch
/// saw joins what the step saw, and the slots are ready to be raised again.
void fold_amax(Stream& stream, const Tensor& current, const Tensor& largest);

/// Raises the flags, u32 [slots], of amaxes that are infinite or NaN: quantizing with an older scale does not
/// see them.
void flag_non_finite(Stream& stream, const Tensor& amaxes, const Tensor& flags);

/// sum_of_squares (f64 [1]) becomes NaN if a flag (u32 [n]) is raised: saturation hides an infinity from the
/// gradient norm, the norm tells every rank to skip.
void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares);

}  // namespace ottava::fp8
