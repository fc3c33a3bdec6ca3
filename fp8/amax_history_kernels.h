#pragma once

#include "fp8/amax_history.h"

namespace ottava::fp8::cuda {
void delayed_amax(Stream& stream, const AmaxHistory& history, const DelayedAmax& a);
void advance(Stream& stream, const AmaxHistory& history, const Tensor& step_amax);
}  // namespace ottava::fp8::cuda
