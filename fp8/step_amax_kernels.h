#pragma once

#include "fp8/step_amax.h"

namespace ottava::fp8::cuda {
void fold_amax(Stream& stream, const Tensor& current, const Tensor& largest);
void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares);
}  // namespace ottava::fp8::cuda
