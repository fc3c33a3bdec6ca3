#pragma once

#include "core/float8/row_output.h"
#include "core/ops/swiglu.h"

namespace ottava::fp8 {

/// swiglu_forward whose output leaves in FP8, from the same pass: bytes and scales are those of quantize() on
/// the output that swiglu_forward stores (a bf16 value; f32 is rounded to bf16).
struct SwigluQuantize {
  SwigluForward swiglu;  ///< out may be left out; amax must be, rows and blocks have their own
  RowOutput output;
};
/// Reads gate_up [N, 2F] once; writes a byte per element of the output, and the output itself where it is
/// there. F is a multiple of 16 and, on a GPU, addresses are aligned to 16 bytes. Throws ShapeError.
void swiglu_quantize(Stream& stream, const SwigluQuantize& args);

namespace cuda {
void swiglu_quantize(Stream& stream, const SwigluQuantize& args);
}  // namespace cuda

}  // namespace ottava::fp8
