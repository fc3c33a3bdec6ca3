#pragma once

#include "core/cpu/isa.h"
#include "core/ops/norm/qk_norm.h"

namespace ottava {

/// qk_norm_forward() and qk_norm_backward() for some rows (tokens), on the CPU; rows.cols is the length of a
/// row of qkv.
struct QkNormKernels {
  cpu::FloatKernel<void(const QkNormForward&, cpu::Rows)> forward;
  /// Adds the rows' share of [dweight_q | dweight_k] to partial [2D]. Returns the bits of the rows' largest
  /// magnitude, which leaves out the value heads if no amax is wanted.
  cpu::FloatKernel<uint32_t(const QkNormBackward&, cpu::Rows, float* partial)> backward;
};

namespace cuda {
void qk_norm_forward(Stream& stream, const QkNormForward& args);
void qk_norm_backward(Stream& stream, const QkNormBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::QkNormKernels, qk_norm_kernels)
