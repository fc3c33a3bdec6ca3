#include "core/ops/norm/rms_norm_kernels.h"
#include "core/ops/norm/rms_norm_row.h"

// Ceiling: memory bandwidth. Forward moves 4 bytes per bf16 element and does 4 FLOPs on it.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
uint32_t forward(const RmsNormForward& a, Rows rows) {
  const T* weight = static_cast<const T*>(a.weight.data);
  UVec amax{};
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const int64_t start = i * rows.cols;
    const T* h = static_cast<const T*>(a.x.data) + start;
    float squares;
    if (a.residual.data) {
      const T* residual = static_cast<const T*>(a.residual.data) + start;
      T* sum = static_cast<T*>(a.sum.data) + start;
      squares = add_and_sum_squares(h, residual, sum, rows.cols);
      h = sum;
    } else {
      squares = sum_of_squares(h, rows.cols);
    }
    const float rstd = reciprocal_rms(squares, rows.cols, a.eps);
    static_cast<float*>(a.rstd.data)[i] = rstd;
    normalise_row(h, weight, rstd, static_cast<T*>(a.y.data) + start, rows.cols, amax);
  }
  return max_lane(amax);
}

template <class T>
uint32_t backward(const RmsNormBackward& a, Rows rows, float* partial) {
  UVec amax{};
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const int64_t start = i * rows.cols;
    norm_row_backward<T>(
        {.dy = static_cast<const T*>(a.dy.data) + start,
         .h = static_cast<const T*>(a.x.data) + start,
         .weight = static_cast<const T*>(a.weight.data),
         .through = a.dresidual.data ? static_cast<const T*>(a.dresidual.data) + start : nullptr,
         .dx = static_cast<T*>(a.dx.data) + start,
         .dweight = partial},
        static_cast<const float*>(a.rstd.data)[i], rows.cols, amax);
  }
  return max_lane(amax);
}

}  // namespace

RmsNormKernels rms_norm_kernels() {
  return {{forward<float>, forward<bf16>}, {backward<float>, backward<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
