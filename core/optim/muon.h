#pragma once

#include <array>
#include <vector>

#include "core/optim/step_scalars.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Muon (kellerjordan.github.io/posts/muon; arXiv:2502.16982): a matrix moves along its momentum, with all
/// singular values brought near 1. There are three steps, so that the ranks that hold a matrix and the one
/// that works on it may differ: muon_momentum() on shards, newton_schulz() on a whole matrix, muon_apply() on
/// shards.
struct MuonHyper {
  float momentum = 0.95f;
  bool nesterov = true;
  int steps = 5;                                                  ///< of Newton-Schulz
  std::array<float, 3> coefficients{3.4445f, -4.7750f, 2.0315f};  ///< a, b, c
};

/// g = gradient * factor; m += (1 - momentum) (g - m); update = nesterov ? (1-momentum) g + momentum m : m.
/// gradient and momentum f32, update f32|bf16; momentum is updated in place, update overwritten. If the
/// factor (step_scalars.h) is 0, m stays and update is 0. Subnormal numbers as in adamw().
struct MuonMomentum {
  Tensor gradient, momentum, update;
};
/// `scalars` f32 [kStepScalars]. Throws ShapeError naming the tensor's index.
void muon_momentum(Stream& stream, const std::vector<MuonMomentum>& tensors, const MuonHyper& hyper,
                   const Tensor& scalars);

/// x [m,n] f32|bf16, in place: x / (Frobenius norm + 1e-7), then `steps` times, with k = min(m, n),
///     A = x x^T (m <= n) or x^T x;  B = b A + c A A;  x = a x + (B x or x B)
/// Singular values end between about 0.5 and 1.5. Products have operands in x's type and f32 sums, which are
/// rounded once to x's type. A matrix of zeros stays as it is. The bits are the same for any number of ranks.
/// A and A A are symmetric, so only half of each is multiplied: 3 m n k + k^3 FLOPs per step, plus lower
/// powers of k. Throws ShapeError, also for fewer than one step.
struct NewtonSchulz {
  Tensor x;
  Tensor gram;          ///< [k,k] of x's type, scratch
  Tensor gram_squared;  ///< f32 [k,k], scratch
  Tensor product;       ///< f32 [m,n], scratch
  Tensor sums;          ///< f64 newton_schulz_sums(), scratch
};
Shape newton_schulz_sums(const Shape& x);
void newton_schulz(Stream& stream, const NewtonSchulz& args, const MuonHyper& hyper);

/// master -= lr (weight_decay master + scale update), with lr = learning rate * lr_factor; nothing changes if
/// the factor (step_scalars.h) is 0. master f32, update f32|bf16; compute and amax as in AdamwTensor. Throws
/// ShapeError naming the tensor's index.
struct MuonWeight {
  Tensor master, update, compute, amax;
  float weight_decay = 0, lr_factor = 1, scale = 1;
};
void muon_apply(Stream& stream, const std::vector<MuonWeight>& tensors, const Tensor& scalars);

}  // namespace ottava
