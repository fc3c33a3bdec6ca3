#pragma once

#include "core/cpu/isa.h"
#include "core/ops/cross_entropy.h"

namespace ottava {

/// The steps of the cross-entropy for some rows, on the CPU. `backward` writes one row of dlogits and is
/// chosen by their type; `softmax_scale` is what softmax is multiplied by, and is not used for an ignored
/// row.
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
