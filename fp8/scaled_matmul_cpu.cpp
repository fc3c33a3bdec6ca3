#include "core/cpu/vec.h"
#include "fp8/scaled_matmul_kernels.h"

// Ceiling: memory bandwidth: 4 bytes of sums read and an element written (accumulating: read and written).

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
void scale_row(const float* sums, int64_t n, const fp8::RowScales& scales, bool accumulate,
               void* destination) {
  T* out = static_cast<T*>(destination);
  const Vec row = splat(scales.row), whole = row * scales.column;
  for_each_vec(n, [&](int64_t c, auto lanes) {
    const Vec scale = scales.columns ? row * load(scales.columns + c, lanes) : whole;
    Vec y = load(sums + c, lanes) * scale;
    if (accumulate) y += load(out + c, lanes);
    store(out + c, y, lanes);
  });
}

}  // namespace

fp8::ScaledMatmulKernels scaled_matmul_kernels() { return {{scale_row<float>, scale_row<bf16>}}; }

}  // namespace ottava::cpu::OTTAVA_ISA
