#pragma once

#include "core/cpu/isa.h"
#include "core/optim/muon.h"

namespace ottava {

/// n elements of one tensor. `update` has the kernel's first type, `compute` (may be null) its second.
struct MuonWeightChunk {
  float* master;
  const void* update;
  void* compute;
  int64_t n;
  float weight_decay, learning_rate, scale;
};
struct MuonKernels {
  cpu::FloatKernel<void(const float* gradient, float* momentum, void* update, int64_t n, float factor,
                        const MuonHyper& hyper)>
      momentum;  ///< by update's type
  /// By compute's type. Return the bits of max |bf16 of the new value|.
  cpu::FloatKernel<uint32_t(const MuonWeightChunk&)> apply_f32, apply_bf16;
  /// x = a x + b y, by x's type; if a is 0, x is not read.
  cpu::FloatKernel<void(void* x, const float* y, int64_t n, float a, float b)> combine;
};

namespace cuda {
void muon_momentum(Stream& stream, const std::vector<MuonMomentum>& tensors, const MuonHyper& hyper,
                   const Tensor& scalars);
void muon_apply(Stream& stream, const std::vector<MuonWeight>& tensors, const Tensor& scalars);
void muon_divide_by_norm(Stream& stream, const Tensor& x, const Tensor& y, const Tensor& sum_of_squares);
void muon_combine(Stream& stream, const Tensor& x, float a, const Tensor& y, float b);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::MuonKernels, muon_kernels)
