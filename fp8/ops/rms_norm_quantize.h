#pragma once

#include "core/float8/row_output.h"
#include "core/ops/norm/rms_norm.h"

namespace ottava::fp8 {

/// rms_norm_forward whose y leaves in FP8, from the same pass: bytes and scales are those of quantize() on
/// the y that rms_norm_forward stores (a bf16 value; y in f32 is rounded to bf16).
struct RmsNormQuantize {
  RmsNormForward norm;  ///< y may be left out; amax must be, rows and blocks have their own
  RowOutput output;
};
/// Reads x (and residual) once; writes a byte per element, and y and sum where they are there. C is a
/// multiple of 16 and, on a GPU, addresses are aligned to 16 bytes. Throws ShapeError.
void rms_norm_quantize(Stream& stream, const RmsNormQuantize& args);

namespace cuda {
void rms_norm_quantize(Stream& stream, const RmsNormQuantize& args);
}  // namespace cuda

}  // namespace ottava::fp8
