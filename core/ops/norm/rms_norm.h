#pragma once

#include "core/float8/row_output.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// RMSNorm (arXiv:1910.07467), optionally after adding a residual:
///     h = x + residual;  rstd = 1 / sqrt(mean_C(h^2) + eps);  y = h * rstd * weight
/// x, residual, sum, y [N,C] and weight [C] share one dtype, f32 or bf16; rstd [N] f32. Statistics and
/// products are f32; with bf16, h is rounded before it is normalised, so that y is determined by `sum`.
/// Overwrites y, rstd and sum.
struct RmsNormForward {
  Tensor x, weight;
  Tensor residual;  ///< may be left out; then sum must be too
  Tensor sum;       ///< h, needed with a residual; may alias x or residual
  Tensor y;         ///< may be left out with `float8`
  Tensor rstd;
  Tensor amax;  ///< may be left out: u32 [1], raised to the bits of max |y| as stored (NaN ranks highest)
  fp8::RowOutput float8;  ///< may be left out: y in FP8
  float eps = 1e-5f;
};
/// Throws ShapeError. Reads x (and residual) once, writes y (and sum) once: 2 or 4 elements of traffic per
/// element, FP8 aside. Recorded as `rms_norm_quantize` where it writes FP8.
void rms_norm_forward(Stream& stream, const RmsNormForward& args);

/// The backward pass:
///     g = dy * weight
///     dx_i = rstd * (g_i - h_i * rstd^2 * mean_C(g * h)) + dresidual_i
///     dweight += sum_N dy * h * rstd
/// x is the normalised input h. dy, x, dx, dresidual [N,C], weight [C] share one dtype; rstd [N], dweight [C]
/// f32.
struct RmsNormBackward {
  Tensor dy, x, weight, rstd;
  Tensor dresidual;       ///< may be left out: the gradient that reaches h beside the norm; added to dx
  Tensor dx;              ///< overwritten; may alias dy or dresidual
  Tensor dweight;         ///< accumulated
  Tensor workspace;       ///< f32, shape rms_norm_workspace()
  Tensor amax;            ///< may be left out: u32 [1], raised to the bits of max |dx| as stored
  fp8::RowOutput float8;  ///< may be left out: dx in FP8, beside dx
};
/// dweight is summed per fixed group of rows and the groups are added in order: bitwise the same for any
/// number of threads. Recorded as `rms_norm_backward_quantize` where it writes FP8. Throws ShapeError.
void rms_norm_backward(Stream& stream, const RmsNormBackward& args);
/// Of RmsNormBackward::workspace on the stream's target, f32.
Shape rms_norm_workspace(const Stream& stream, int64_t channels);

}  // namespace ottava
