#pragma once

#include <cstdint>
#include <string_view>

#include "core/cpu/isa.h"
#include "core/ops/norm/rms_norm.h"

namespace ottava {

/// Rows of rms_norm_forward / backward on the CPU. Both return the bits of max |output|.
struct RmsNormKernels {
  cpu::FloatKernel<uint32_t(const RmsNormForward&, cpu::Rows)> forward;
  /// Adds the rows' share of dweight to partial [C].
  cpu::FloatKernel<uint32_t(const RmsNormBackward&, cpu::Rows, float* partial)> backward;
};

/// Throws ShapeError, in the name of `op`, unless the arguments fit each other.
void check_rms_norm_backward(std::string_view op, const RmsNormBackward& args, const Shape& workspace);

namespace cuda {
void rms_norm_forward(Stream& stream, const RmsNormForward& args);
void rms_norm_backward(Stream& stream, const RmsNormBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::RmsNormKernels, rms_norm_kernels)
