#include "core/cuda/elements.cuh"
#include "fp8/scaled_matmul_kernels.h"

// What surrounds products: scaling sums reads 4 bytes and writes 2 or 4 per element (accumulating: reads 4
// more), at memory bandwidth.
namespace ottava::fp8::cuda {
namespace {

using namespace ottava::cuda;

constexpr int kBlock = 256;

template <class T>
struct Arguments {
  const float *sums, *row_scales, *column_scales;
  int64_t packs, columns;  // packs in all; columns of the result
  int64_t sums_stride, out_stride;
  bool by_row, by_column;
  T* out;  // may be sums
};

template <class T, int kSize, bool kAccumulate>
__global__ void __launch_bounds__(kBlock) scale_kernel(Arguments<T> a) {
  const int64_t index = thread_of_grid(kBlock);
  if (index >= a.packs) return;
  const int64_t row = index * kSize / a.columns, column = index * kSize % a.columns;
  const float row_scale = a.row_scales[a.by_row ? row : 0];
  const auto sums = load_pack<float, kSize>(a.sums + row * a.sums_stride + column, 0);
  T* const to = a.out + row * a.out_stride + column;
  Pack<T, kSize> out;
  if constexpr (kAccumulate) out = load_pack<T, kSize>(to, 0);
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float scale = row_scale * a.column_scales[a.by_column ? column + i : 0];
    out.set(i, kAccumulate ? fmaf(sums[i], scale, out[i]) : sums[i] * scale);
  }
  store_pack(to, 0, out);
}

__global__ void __launch_bounds__(kBlock) fill_kernel(const float* from, float* to, int64_t n) {
  const int64_t i = thread_of_grid(kBlock);
  if (i < n) to[i] = *from;
}

}  // namespace

void scale_result(Stream& stream, const ScaledProduct& m, const MatrixRows& sums) {
  constexpr int kSize = 4;  // extents are multiples of 16: a pack lies in one row
  const MatrixRows out = m.out_rows();
  dispatch_element(out.dtype, "scaled_matmul", [&]<class T>() {
    const bool aligned = rows_are_aligned(4 * sums.stride, sums, out) && out.stride % 8 == 0;
    const Arguments<T> a{.sums = pointer<float>(sums),
                         .row_scales = pointer<float>(m.a.matrix.scale_inverse),
                         .column_scales = pointer<float>(m.b.matrix.scale_inverse),
                         .packs = out.numel() / (aligned ? kSize : 1),
                         .columns = out.cols,
                         .sums_stride = sums.stride,
                         .out_stride = out.stride,
                         .by_row = m.a.matrix.scale_inverse.numel() > 1,
                         .by_column = m.b.matrix.scale_inverse.numel() > 1,
                         .out = pointer<T>(out)};
    const LaunchShape shape = one_thread_each(a.packs, kBlock);
    if (aligned) {
      launch("scaled_matmul", stream, shape,
             m.accumulate ? scale_kernel<T, kSize, true> : scale_kernel<T, kSize, false>, a);
    } else {
      launch("scaled_matmul", stream, shape,
             m.accumulate ? scale_kernel<T, 1, true> : scale_kernel<T, 1, false>, a);
    }
  });
}

void fill_with(Stream& stream, const Tensor& from, const Tensor& to) {
  launch("scaled_matmul", stream, one_thread_each(to.numel(), kBlock), fill_kernel, pointer<float>(from),
         pointer<float>(to), to.numel());
}

}  // namespace ottava::fp8::cuda
