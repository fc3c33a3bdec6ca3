#pragma once

#include "core/float8/formats.h"
#include "fp8/step_amax.h"

namespace ottava::fp8::cuda {
void flag_non_finite(Stream& stream, const FlagNonFinite& a);
void fold_amax(Stream& stream, const FoldAmax& a);
void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares);
}  // namespace ottava::fp8::cuda
