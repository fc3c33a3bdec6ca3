#pragma once

#include <cstdint>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// What changes from step to step, on the device so that a captured graph can be replayed: f32 values at
/// these indices of one tensor.
enum StepScalar : int {
  kLearningRate,
  kLossScale,  ///< what gradients were multiplied by (loss scaling); 1 without
  /// d(scaled loss) / d(sum of token losses) = loss scale / valid tokens of the whole step
  kLossGradient,
  /// written by clip_factor(): 1 / loss scale * min(1, max_norm / (norm + 1e-6)); 0 skips the step
  kGradientFactor,
  kGradientNorm,  ///< written by clip_factor(): the unscaled global norm before clipping
  kStepScalars
};

/// AdamW with decoupled weight decay (arXiv:1711.05101), f32 throughout:
///     g = gradient * factor;  m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
///     p -= lr * ((m / c1) / (sqrt(v / c2) + eps) + weight_decay * p)   with lr = learning rate * lr_factor,
///     c1 = 1 - beta1^t, c2 = 1 - beta2^t, where t counts the updates since this tensor's moments were zero
/// One entry per parameter shard. `gradient`, `master` f32; exp_avg, exp_avg_sq f32 or bf16; `compute` (may
/// be left out) receives the new value in bf16 or f32. When factor is 0 nothing moves.
///
/// bf16 states are rounded stochastically (arXiv:1502.02551): one of 2^16 thresholds is added to the f32
/// bits, which are then cut. Element e takes word e % 4 of PhiloxStream{seed, key + step *
/// 0x9E3779B97F4A7C15}.bits(e / 4): exp_avg the low half, exp_avg_sq the high one, with e = first_element +
/// index: the result does not depend on sharding where elements of a tensor keep their numbers, as they do
/// but for columns that tensor parallel ranks share out (apps/train/step_update.cpp).
struct AdamwTensor {
  Tensor master, gradient, exp_avg, exp_avg_sq, compute;
  Tensor bias_correction;  ///< f32 [2]: c1, c2, on the device as what else changes from step to step
  /// May be left out: u32 [1], raised to the bits of max |bf16 of the weight| as the step leaves it, a
  /// skipped step too: what scales the weight's FP8 codes.
  Tensor amax;
  float weight_decay = 0;
  float lr_factor = 1;        ///< of this tensor's learning rate
  uint64_t key = 0;           ///< identifies the tensor for stochastic rounding
  int64_t first_element = 0;  ///< number of element 0 among all of that key; those that follow count up
};
struct AdamwHyper {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  uint64_t seed = 0;
};
/// `scalars` f32 [kStepScalars]; `step` i64 [1]: of the run, used for rounding only. Throws ShapeError naming
/// the tensor's index. With f32 states and bf16 compute 30 bytes cross memory per element.
void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
           const Tensor& scalars, const Tensor& step);

}  // namespace ottava
