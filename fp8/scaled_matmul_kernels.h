#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "fp8/scaled_matmul.h"

namespace ottava::fp8 {

/// Scales of one row of a product, for n columns: those of its columns one by one, or one for all of them.
struct RowScales {
  float row = 1;
  const float* columns = nullptr;  ///< null: all are `column`
  float column = 1;
};
struct ScaledMatmulKernels {
  /// out = sums * (row * column), or out += it; out may be sums.
  cpu::FloatKernel<void(const float* sums, int64_t n, const RowScales& scales, bool accumulate, void* out)>
      scale_row;
};

namespace cuda {
void scaled_matmul(Stream& stream, const ScaledMatmul& args);
}  // namespace cuda

}  // namespace ottava::fp8

OTTAVA_CPU_KERNELS(ottava::fp8::ScaledMatmulKernels, scaled_matmul_kernels)
