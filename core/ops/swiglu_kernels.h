#pragma once

#include "core/cpu/isa.h"
#include "core/ops/swiglu.h"

namespace ottava {

/// swiglu_forward() and swiglu_backward() for some rows, on the CPU; rows.cols is F. Both return the bits of
/// max |output|.
struct SwigluKernels {
  cpu::FloatKernel<uint32_t(const SwigluForward&, cpu::Rows)> forward;
  cpu::FloatKernel<uint32_t(const SwigluBackward&, cpu::Rows)> backward;
};

/// The operation's name in messages, costs and launches.
std::string_view name_of(const SwigluForward& args);
std::string_view name_of(const SwigluBackward& args);

namespace cuda {
void swiglu_forward(Stream& stream, const SwigluForward& args);
void swiglu_backward(Stream& stream, const SwigluBackward& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::SwigluKernels, swiglu_kernels)
