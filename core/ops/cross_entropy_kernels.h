#pragma once

#include "core/cpu/isa.h"
#include "core/ops/cross_entropy.h"

namespace ottava {

/// Rows of the steps of the cross-entropy on the CPU. `backward` writes one row of dlogits, is chosen by
/// their type and takes what softmax is multiplied by, which is not looked at for an ignored row.
struct CrossEntropyKernels {
  void (*max)(const CrossEntropy&, cpu::Rows);
  void (*sum)(const CrossEntropy&, cpu::Rows);
  cpu::FloatKernel<void(const CrossEntropyBackward&, int64_t row, float softmax_scale)> backward;
};

namespace cuda {
void cross_entropy_max(Stream& stream, const CrossEntropy& args);
void cross_entropy_sum(Stream& stream, const CrossEntropy& args);
void cross_entropy_backward(Stream& stream, const CrossEntropyBackward& args);
void cross_entropy(Stream& stream, const CrossEntropyBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::CrossEntropyKernels, cross_entropy_kernels)
