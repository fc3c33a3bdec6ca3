#include "core/cuda/elements.cuh"
#include "core/ops/matmul/matmul_kernels.h"

// Ceiling: memory bandwidth: add_bias reads and writes y once, bias_gradient reads dy once; one FLOP per
// element.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256;

template <class T, int kSize>
__global__ void __launch_bounds__(kBlock) add_kernel(T* y, const T* bias, int64_t packs) {
  T* row = y + blockIdx.x * packs * kSize;
  for (int64_t c = threadIdx.x; c < packs; c += kBlock) {
    auto x = load_pack<T, kSize>(row, c);
    const auto b = load_pack<T, kSize>(bias, c);
#pragma unroll
    for (int i = 0; i < kSize; ++i) x.set(i, x[i] + b[i]);
    store_pack(row, c, x);
  }
}

constexpr int kColumns = 32, kSlices = 16;  // of one block of gradient_kernel

// Each of 16 warps adds every 16th row, then the 16 sums are added in order.
template <class T>
__global__ void __launch_bounds__(kColumns* kSlices)
    gradient_kernel(const T* dy, float* dbias, int64_t rows, int64_t cols) {
  OTTAVA_SHARED(float, slices, [kSlices][kColumns]);
  const int lane = threadIdx.x % kColumns, slice = threadIdx.x / kColumns;
  const int64_t c = blockIdx.x * int64_t{kColumns} + lane;
  float sum = 0;
  if (c < cols) {
#pragma unroll 8
    for (int64_t n = slice; n < rows; n += kSlices) sum += to_float(dy[n * cols + c]);
  }
  slices[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || c >= cols) return;
  for (int i = 1; i < kSlices; ++i) sum += slices[i][lane];
  dbias[c] += sum;
}

}  // namespace

void add_bias(Stream& stream, const Tensor& y, const Tensor& bias) {
  dispatch_element(y.dtype, "add_bias", [&]<class T>() {
    const bool aligned = rows_are_aligned(y.cols() * int64_t{sizeof(T)}, y, bias);
    launch("add_bias", stream, {.grid = grid_of(y.rows()), .block = kBlock},
           aligned ? add_kernel<T, kPackSize<T>> : add_kernel<T, 1>, pointer<T>(y), pointer<T>(bias),
           aligned ? y.cols() / kPackSize<T> : y.cols());
  });
}

void bias_gradient(Stream& stream, const Tensor& dy, const Tensor& dbias) {
  dispatch_element(dy.dtype, "bias_gradient", [&]<class T>() {
    launch("bias_gradient", stream,
           {.grid = grid_of(ceil_div(dy.cols(), kColumns)), .block = kColumns * kSlices}, gradient_kernel<T>,
           pointer<T>(dy), pointer<float>(dbias), dy.rows(), dy.cols());
  });
}

}  // namespace ottava::cuda
