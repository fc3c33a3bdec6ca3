#pragma once

#include "core/float8/row_output.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// out = silu(gate) * up (arXiv:2002.05202) with gate_up [N, 2F] = [gate | up], silu(x) = x / (1 + exp(-x)),
/// f32 inside. gate_up and out [N,F] share f32 or bf16.
struct SwigluForward {
  Tensor gate_up;
  Tensor out;             ///< may be left out with `float8`
  Tensor amax;            ///< may be left out: u32 [1], raised to the bits of max |out| as stored
  fp8::RowOutput float8;  ///< may be left out: out in FP8
};
/// Recorded as `swiglu_quantize` where it writes FP8. Throws ShapeError.
void swiglu_forward(Stream& stream, const SwigluForward& args);

/// dgate = dout * up * s * (1 + gate * (1 - s)), dup = dout * gate * s, with s = sigmoid(gate). Overwrites
/// dgate_up [N,2F], which may alias gate_up. If `out` is given, silu(gate) * up is written to it again: the
/// next layer's weight gradient needs it, and here it costs no extra reads.
struct SwigluBackward {
  Tensor dout, gate_up, dgate_up;
  Tensor out;             ///< may be left out
  Tensor amax;            ///< may be left out: u32 [1], raised to the bits of max |dgate_up| as stored
  fp8::RowOutput float8;  ///< may be left out: dgate_up in FP8, beside it; a row's groups span both halves
};
/// Recorded as `swiglu_backward_quantize` where it writes FP8. Throws ShapeError.
void swiglu_backward(Stream& stream, const SwigluBackward& args);

}  // namespace ottava
