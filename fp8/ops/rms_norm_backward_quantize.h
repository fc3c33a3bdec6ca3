#pragma once

#include "core/float8/row_output.h"
#include "core/ops/norm/rms_norm.h"

namespace ottava::fp8 {

/// rms_norm_backward whose dx leaves in FP8 too, from the same pass: bytes and scales are those of quantize()
/// on the dx that rms_norm_backward stores (a bf16 value; dx in f32 is rounded to bf16). dx is the residual
/// stream's gradient, which is read on, so it is written as ever; dweight is rms_norm_backward's, bit for
/// bit.
struct RmsNormBackwardQuantize {
  RmsNormBackward norm;  ///< amax must be left out: rows and blocks have their own
  RowOutput output;
};
/// Reads dy and x (and dresidual) once; writes dx and a byte per element. C is a multiple of 16 and, on a
/// GPU, addresses are aligned to 16 bytes. Overwrites dx and `output`, accumulates into dweight. Throws
/// ShapeError.
void rms_norm_backward_quantize(Stream& stream, const RmsNormBackwardQuantize& args);

namespace cuda {
void rms_norm_backward_quantize(Stream& stream, const RmsNormBackwardQuantize& args);
}  // namespace cuda

}  // namespace ottava::fp8
