#pragma once

#include "fp8/quantize.h"

// The loops over threads of quantize() and dequantize() on the CPU; arguments are checked.
namespace ottava::cpu {

void quantize(const fp8::Quantize& args);
void dequantize(const fp8::Quantized& x, fp8::Granularity granularity, const Tensor& y);

}  // namespace ottava::cpu
