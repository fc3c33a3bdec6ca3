#pragma once

#include "core/cpu/isa.h"
#include "core/ops/rope.h"

namespace ottava {

/// rope() for some rows, on the CPU; returns the bits of their amax if that is wanted.
struct RopeKernels {
  cpu::FloatKernel<uint32_t(const Rope&, cpu::Rows)> rotate;
};

namespace cuda {
void rope(Stream& stream, const Rope& args);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::RopeKernels, rope_kernels)
