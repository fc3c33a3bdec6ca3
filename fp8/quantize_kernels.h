#pragma once

#include "fp8/quantize.h"

namespace ottava::fp8 {

/// The rows to quantize.
inline MatrixRows x_of(const Quantize& args) { return rows_of("quantize", args.x, args.x_columns); }

namespace cuda {
void amax(Stream& stream, const MatrixRows& x, const Tensor& amax);
void column_amax(Stream& stream, const MatrixRows& x, const Tensor& amax);
void quantize(Stream& stream, const Quantize& args);
/// Inverse scales may be left out; all are then 1.
void dequantize(Stream& stream, const Float8Codes& x, Granularity granularity, const Tensor& y);
void transpose_codes(Stream& stream, const Tensor& from, const Tensor& to);
void transpose_block_scales(Stream& stream, const Tensor& from, Shape matrix, const Tensor& to);
}  // namespace cuda

}  // namespace ottava::fp8
