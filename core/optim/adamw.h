#pragma once

#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// What changes from step to step, on the device so that a captured graph can be replayed: f32 values at these indices
/// of one tensor.
enum StepScalar : int {
  kLearningRate,
  kBiasCorrection1,  ///< 1 - beta1^t
  kBiasCorrection2,  ///< 1 - beta2^t
  kLossScale,        ///< what gradients were multiplied by (loss scaling); 1 without
  kLossGradient,     ///< d(scaled loss) / d(sum of token losses) = loss scale / valid tokens of the whole step
  kGradientFactor,   ///< written by clip_factor(): 1 / loss scale * min(1, max_norm / (norm + 1e-6)); 0 skips the step
  kGradientNorm,     ///< written by clip_factor(): the unscaled global norm before clipping
  kStepScalars
};

/// AdamW with decoupled weight decay (arXiv:1711.05101), f32 throughout:
///     g = gradient * factor;  m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
///     p -= lr * ((m / c1) / (sqrt(v / c2) + eps) + weight_decay * p)
/// One entry per parameter shard. `gradient`, `master` f32; exp_avg, exp_avg_sq f32 or bf16 (bf16 is stored with
/// stochastic rounding keyed by (seed, step, key, element)); `compute` (may be left out) receives the new value in bf16
/// or f32. When factor is 0 nothing moves.
struct AdamwTensor {
  Tensor master, gradient, exp_avg, exp_avg_sq, compute;
  Tensor amax;  ///< may be left out: u32 [1], raised to the bits of max |compute|
  float weight_decay = 0;
  float lr_factor = 1;        ///< of this tensor's learning rate
  uint64_t key = 0;           ///< identifies the tensor for stochastic rounding
  int64_t first_element = 0;  ///< global index of element 0, so that rounding does not depend on sharding
};
struct AdamwHyper {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  uint64_t seed = 0;
};
/// `scalars` f32 [kStepScalars]; `step` i64 [1]: t, used for rounding only.
void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper, const Tensor& scalars,
           const Tensor& step);

}  // namespace ottava
