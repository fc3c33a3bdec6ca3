#pragma once

#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// out[0] (f64 [1]) = the sum of squares of all elements of the f32 gradients, added in f64 over tensors in
/// order and over fixed chunks in order: bitwise the same for any number of threads. The caller leaves out
/// elements that another rank counts. workspace f64, shape grad_norm_workspace(). Throws ShapeError.
void grad_norm_squared(Stream& stream, const std::vector<Tensor>& gradients, const Tensor& out,
                       const Tensor& workspace);
Shape grad_norm_workspace(const std::vector<Shape>& gradients);

/// Computes scalars[kGradientNorm] and scalars[kGradientFactor] (step_scalars.h) from the global sum of
/// squares (f64 [1]):
///     norm = sqrt(sum) / loss_scale;  factor = min(1, max_norm / (norm + 1e-6)) / loss_scale
/// max_norm <= 0 never clips. If the norm is not finite in f32, or the factor is subnormal, factor = 0 and
/// skipped (i32 [1]) = kNotFinite (spike.h); else kNotSkipped. No host synchronisation. Throws ShapeError.
void clip_factor(Stream& stream, const Tensor& sum_of_squares, float max_norm, const Tensor& scalars,
                 const Tensor& skipped);

}  // namespace ottava
