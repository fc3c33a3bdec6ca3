#pragma once

#include "core/float8/row_output.h"
#include "core/ops/swiglu.h"

namespace ottava::fp8 {

/// swiglu_backward whose dgate_up [N, 2F] leaves in FP8 too, from the same pass: bytes and scales are those
/// of quantize() on the dgate_up that swiglu_backward stores (a bf16 value; f32 is rounded to bf16). A row's
/// groups span both halves. dgate_up is written as ever, for the weight gradient.
struct SwigluBackwardQuantize {
  SwigluBackward swiglu;  ///< amax must be left out: rows and blocks have their own
  RowOutput output;
};
/// Reads dout and gate_up once; writes dgate_up (and out) and a byte per element of dgate_up. 2F is a
/// multiple of 16 and, on a GPU, addresses are aligned to 16 bytes. Throws ShapeError.
void swiglu_backward_quantize(Stream& stream, const SwigluBackwardQuantize& args);

namespace cuda {
void swiglu_backward_quantize(Stream& stream, const SwigluBackwardQuantize& args);
}  // namespace cuda

}  // namespace ottava::fp8
