#pragma once

#include "core/ops/rope.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// RMSNorm of every query and key head over its D elements (Qwen3), before RoPE:
///     y = x / sqrt(mean_D(x^2) + eps) * weight
/// with weight_q for query heads and weight_k for key heads; value heads are copied as they are. qkv
/// [N,row()] f32|bf16; out the same shape, may alias qkv only when no backward follows; weights [D] same
/// dtype; rstd f32 [N, H + H_kv] out.
struct QkNormForward {
  Tensor qkv, weight_q, weight_k, out, rstd;
  AttentionHeads heads;
  float eps = 1e-5f;
};
/// Throws ShapeError.
void qk_norm_forward(Stream& stream, const QkNormForward& args);

/// Turns dqkv in place from the gradient of out into the gradient of qkv. dweight_q, dweight_k [D] f32 are
/// accumulated in a fixed order. `qkv` is forward's input. Throws ShapeError.
struct QkNormBackward {
  Tensor dqkv, qkv, weight_q, weight_k, rstd;
  Tensor dweight_q, dweight_k;
  Tensor workspace;  ///< f32, qk_norm_workspace()
  AttentionHeads heads;
  /// May be left out: u32 [1], raised to the bits of max |dqkv| as stored. This includes the value heads,
  /// which are read only for it.
  Tensor amax;
};
void qk_norm_backward(Stream& stream, const QkNormBackward& args);
/// Of QkNormBackward::workspace on the stream's target, f32.
Shape qk_norm_workspace(const Stream& stream, AttentionHeads heads);

}  // namespace ottava
