#include "core/cuda/elements.cuh"
#include "core/ops/matmul/matmul_kernels.h"

// Ceiling: memory bandwidth: what is above the diagonal is read once and written once.
namespace ottava::cuda {
namespace {

constexpr int kTile = 32, kRows = 8;  // of a block of threads: kTile x kRows

template <class T>
__global__ void __launch_bounds__(kTile* kRows) mirror_kernel(T* x, int64_t k, int64_t tiles) {
  OTTAVA_SHARED(T, tile, [kTile][kTile + 2]);
  const int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  if (row < column) return;
  const int lane = threadIdx.x % kTile, first = threadIdx.x / kTile;
  for (int i = first; i < kTile; i += kRows) {
    if (column + i < k && row + lane < k) tile[i][lane] = x[(column + i) * k + row + lane];
  }
  __syncthreads();
  for (int i = first; i < kTile; i += kRows) {
    if (row + i < k && column + lane < row + i) x[(row + i) * k + column + lane] = tile[lane][i];
  }
}

}  // namespace

void mirror(Stream& stream, const Tensor& x) {
  dispatch_element(x.dtype, "matmul", [&]<class T>() {
    const int64_t tiles = ceil_div(x.rows(), kTile);
    launch("mirror", stream, {.grid = grid_of(tiles * tiles), .block = kTile * kRows}, mirror_kernel<T>,
           pointer<T>(x), x.rows(), tiles);
  });
}

}  // namespace ottava::cuda
