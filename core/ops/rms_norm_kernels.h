#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "core/dtype.h"
#include "core/ops/rms_norm.h"

namespace ottava {

/// Rows [begin, end) of rms_norm_forward / backward on the CPU. Both return the bits of max |output|.
struct RmsNormKernels {
  uint32_t (*forward_f32)(const RmsNormForward&, int64_t begin, int64_t end);
  uint32_t (*forward_bf16)(const RmsNormForward&, int64_t begin, int64_t end);
  /// Adds the rows' share of dweight to partial [C].
  uint32_t (*backward_f32)(const RmsNormBackward&, int64_t begin, int64_t end, float* partial);
  uint32_t (*backward_bf16)(const RmsNormBackward&, int64_t begin, int64_t end, float* partial);
};

namespace cuda {
void rms_norm_forward(Stream& stream, const RmsNormForward& args);
void rms_norm_backward(Stream& stream, const RmsNormBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::RmsNormKernels, rms_norm_kernels)
