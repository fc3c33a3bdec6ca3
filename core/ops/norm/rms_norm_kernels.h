#pragma once

#include <cstdint>
#include <string_view>

#include "core/cpu/isa.h"
#include "core/ops/norm/rms_norm.h"

namespace ottava {

/// rms_norm_forward() and rms_norm_backward() for some rows, on the CPU. Both return the bits of max
/// |output|.
struct RmsNormKernels {
  cpu::FloatKernel<uint32_t(const RmsNormForward&, cpu::Rows)> forward;
  /// Adds the rows' share of dweight to partial [C].
  cpu::FloatKernel<uint32_t(const RmsNormBackward&, cpu::Rows, float* partial)> backward;
};

/// The operation's name in messages, costs and launches.
std::string_view name_of(const RmsNormForward& args);
std::string_view name_of(const RmsNormBackward& args);

namespace cuda {
void rms_norm_forward(Stream& stream, const RmsNormForward& args);
void rms_norm_backward(Stream& stream, const RmsNormBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::RmsNormKernels, rms_norm_kernels)
