#include "core/float8/codec.cuh"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth: x is read once, one or two instructions per element.
namespace ottava::fp8::cuda {
namespace {

constexpr int kBlock = 256, kPiecesPerThread = 4;

template <class T>
__global__ void __launch_bounds__(kBlock) amax_kernel(const T* x, int64_t n, uint32_t* amax, bool wide) {
  const int64_t first = blockIdx.x * int64_t{kBlock * kPiecesPerThread} + threadIdx.x;
  uint32_t pair = 0;
#pragma unroll
  for (int k = 0; k < kPiecesPerThread; ++k) {
    const int64_t at = (first + k * kBlock) * 16, valid = n - at;
    const Sixteen piece = load_sixteen(x + at, valid, wide && (valid >= 16 || valid <= 0));
#pragma unroll
    for (int i = 0; i < 8; ++i) pair = max_of_pairs(pair, piece.pairs[i]);
  }
  raise_amax(amax, max(bits_of_low(pair), bits_of_high(pair)));
}

// A warp reads 512 columns of one row; eight warps and 16 rows for each of them make a block.
constexpr int kColumns = 512, kRows = 128;

template <class T>
__global__ void __launch_bounds__(kBlock)
    column_amax_kernel(const T* x, int64_t rows, int64_t cols, uint32_t* amax, unsigned across, bool wide) {
  OTTAVA_SHARED(uint32_t, largest, [kColumns]);
  for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kBlock) largest[i] = 0;
  __syncthreads();
  const int64_t c0 = int64_t{blockIdx.x % across} * kColumns, r0 = int64_t{blockIdx.x / across} * kRows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t col = c0 + lane * 16;
  Sixteen own{};
#pragma unroll 4
  for (int r = static_cast<int>(threadIdx.x / 32); r < kRows; r += kBlock / 32) {
    const Sixteen piece = load_sixteen(x + (r0 + r) * cols + col, r0 + r < rows ? cols - col : 0, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) own.pairs[i] = max_of_pairs(own.pairs[i], piece.pairs[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    atomicMax(&largest[lane * 16 + i * 2], bits_of_low(own.pairs[i]));
    atomicMax(&largest[lane * 16 + i * 2 + 1], bits_of_high(own.pairs[i]));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns && c0 + i < cols; i += kBlock) {
    if (load_relaxed(amax + c0 + i) < largest[i]) atomicMax(amax + c0 + i, largest[i]);
  }
}

}  // namespace

void amax(Stream& stream, const Tensor& x, const Tensor& amax) {
  dispatch_float(x.dtype, "amax", [&]<class Host>() {
    using T = Element<Host>;
    const int64_t n = x.numel(), blocks = ceil_div(n, int64_t{16} * kBlock * kPiecesPerThread);
    launch("amax", stream, {.grid = grid_of(blocks), .block = kBlock}, amax_kernel<T>,
           static_cast<const T*>(x.data), n, static_cast<uint32_t*>(amax.data), rows_are_aligned(16, x));
  });
}

void column_amax(Stream& stream, const Tensor& x, const Tensor& amax) {
  dispatch_float(x.dtype, "column_amax", [&]<class Host>() {
    using T = Element<Host>;
    const int64_t across = ceil_div(x.cols(), kColumns);
    launch("column_amax", stream, {.grid = grid_of(ceil_div(x.rows(), kRows) * across), .block = kBlock},
           column_amax_kernel<T>, static_cast<const T*>(x.data), x.rows(), x.cols(),
           static_cast<uint32_t*>(amax.data), static_cast<unsigned>(across),
           x.cols() % 16 == 0 && rows_are_aligned(16, x));
  });
}

}  // namespace ottava::fp8::cuda
