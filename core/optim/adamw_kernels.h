#pragma once

#include "core/cpu/isa.h"
#include "core/optim/adamw.h"

namespace ottava {

/// n elements of one tensor. The states have the kernel's state type, `compute` (may be null) its compute
/// type.
struct AdamwChunk {
  float* master;
  const float* gradient;
  void *exp_avg, *exp_avg_sq, *compute;
  int64_t n;
  uint64_t first_element;  ///< global index of element 0
  uint64_t random_stream;
  float bias_correction1, bias_correction2, weight_decay, learning_rate;
};
/// What all chunks of a step share.
struct AdamwStep {
  AdamwHyper hyper;
  float factor;
};
/// Steps return the bits of max |bf16 of the new value|. The type of the states selects the member, the type
/// of compute the kernel in it.
struct AdamwKernels {
  cpu::FloatKernel<uint32_t(const AdamwStep&, const AdamwChunk&)> f32_states;
  cpu::FloatKernel<uint32_t(const AdamwStep&, const AdamwChunk&)> bf16_states;
  uint32_t (*weight_amax)(const float* master, int64_t n);
};

namespace cuda {
void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
           const Tensor& scalars, const Tensor& step);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::AdamwKernels, adamw_kernels)
