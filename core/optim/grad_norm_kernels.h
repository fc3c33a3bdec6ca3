#pragma once

#include "core/cpu/isa.h"
#include "core/optim/grad_norm.h"

namespace ottava {

/// Sums of squares on the CPU, in f64.
struct GradNormKernels {
  double (*sum_of_squares)(const float* x, int64_t n);
};

namespace cuda {
void grad_norm_squared(Stream& stream, const std::vector<Tensor>& gradients, const Tensor& out,
                       const Tensor& workspace);
void clip_factor(Stream& stream, const Tensor& sum_of_squares, float max_norm, const Tensor& scalars,
                 const Tensor& skipped);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::GradNormKernels, grad_norm_kernels)
