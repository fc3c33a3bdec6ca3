#pragma once

#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// out[0] (f64 [1]) = sum of squares of all elements of the f32 gradients, in f64: over tensors in order,
/// over fixed chunks in order; bitwise the same for any thread count. Elements that another rank counts are
/// left out by the caller. workspace f64, shape grad_norm_workspace().
void grad_norm_squared(Stream& stream, const std::vector<Tensor>& gradients, const Tensor& out,
                       const Tensor& workspace);
Shape grad_norm_workspace(const std::vector<Shape>& gradients);

/// From the global sum of squares (f64 [1]) to scalars[kGradientNorm] and scalars[kGradientFactor] (adamw.h):
///     norm = sqrt(sum) / loss_scale;  factor = min(1, max_norm / (norm + 1e-6)) / loss_scale
/// max_norm <= 0 never clips. A norm that is not finite in f32, or a factor that underflows to 0, gives
/// factor 0 and skipped (i32 [1]) = 1, else 0. No host synchronisation.
void clip_factor(Stream& stream, const Tensor& sum_of_squares, float max_norm, const Tensor& scalars,
                 const Tensor& skipped);

}  // namespace ottava
