#pragma once

#include "fp8/quantize.h"

// The loops over threads of the operations of fp8/quantize.h on the CPU; arguments are checked.
namespace ottava::cpu {

void amax(const MatrixRows& x, const Tensor& amax);
void column_amax(const MatrixRows& x, const Tensor& amax);
void quantize(const fp8::Quantize& args);
void dequantize(const fp8::Float8Codes& x, fp8::Granularity granularity, const Tensor& y);
void transpose_codes(const Tensor& from, const Tensor& to);

}  // namespace ottava::cpu
