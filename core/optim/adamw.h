#pragma once

#include <cstdint>
#include <vector>

#include "core/optim/step_scalars.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// AdamW with decoupled weight decay (arXiv:1711.05101), f32 throughout:
///     g = gradient * factor;  m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2
///     p -= lr * ((m / c1) / (sqrt(v / c2) + eps) + weight_decay * p)   with lr = learning rate * lr_factor,
///     c1 = 1 - beta1^t, c2 = 1 - beta2^t, where t counts the updates since this tensor's moments were zero
/// On x86 CPUs what is subnormal (below 1.2e-38) counts as zero: moments of weights that hardly learn fade to
/// such numbers. One entry per parameter shard. `gradient` and `master` are f32, exp_avg and exp_avg_sq f32
/// or bf16; `compute` (may be left out) receives the new value in bf16 or f32. master, exp_avg and exp_avg_sq
/// are updated in place; if factor is 0, nothing changes.
///
/// bf16 states are rounded stochastically (arXiv:1502.02551): one of 2^16 thresholds is added to the f32
/// bits, which are then truncated. Element e = first_element + index takes word e % 4 of PhiloxStream{seed,
/// key + step * 0x9E3779B97F4A7C15}.bits(e / 4), exp_avg the low half and exp_avg_sq the high half. So the
/// result does not depend on sharding as long as elements keep their numbers, as they do except for columns
/// that are divided among tensor-parallel ranks (apps/step/step_update.cpp).
struct AdamwTensor {
  Tensor master, gradient, exp_avg, exp_avg_sq, compute;
  /// f32 [2]: c1 and c2, on the device like everything else that changes from step to step.
  Tensor bias_correction;
  /// May be left out: u32 [1], raised to the bits of max |bf16 of the weight| as the step leaves it, even if
  /// skipped. The weight's FP8 codes are scaled by it.
  Tensor amax;
  float weight_decay = 0;
  float lr_factor = 1;  ///< multiplies the learning rate of this tensor
  uint64_t key = 0;     ///< identifies the tensor for stochastic rounding
  /// number of element 0 among all elements of that key; the others count up from it
  int64_t first_element = 0;
};
struct AdamwHyper {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  uint64_t seed = 0;
};
/// `scalars` f32 [kStepScalars]; `step` i64 [1]: the run's, used only for rounding. Throws ShapeError naming
/// the tensor's index. With f32 states and bf16 compute, 30 bytes per element cross memory.
void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
           const Tensor& scalars, const Tensor& step);

}  // namespace ottava
