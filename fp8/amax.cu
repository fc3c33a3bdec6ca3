#include "core/float8/codec.cuh"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth: x is read once, one or two instructions per element.
namespace ottava::fp8::cuda {
namespace {

constexpr int kBlock = 256, kPiecesPerThread = 4;

template <class T>
struct Rows {
  const T* x;
  int64_t rows, cols, stride;
};

/// Of one long row, or of pieces of many.
template <class T, bool kOneRow>
__global__ void __launch_bounds__(kBlock) amax_kernel(Rows<T> m, uint32_t* amax, bool wide) {
  const int64_t first = thread_of_grid(kBlock * kPiecesPerThread);
  const int64_t across = ceil_div(m.cols, int64_t{16});
  uint32_t pair = 0;
#pragma unroll
  for (int k = 0; k < kPiecesPerThread; ++k) {
    const int64_t index = first + k * kBlock, row = kOneRow ? 0 : index / across;
    const int64_t at = (index - row * across) * 16, valid = row < m.rows ? m.cols - at : 0;
    const Sixteen piece = load_sixteen(m.x + row * m.stride + at, valid, wide && (valid >= 16 || valid <= 0));
#pragma unroll
    for (int i = 0; i < 8; ++i) pair = max_of_pairs(pair, piece.pairs[i]);
  }
  raise_amax(amax, max(bits_of_low(pair), bits_of_high(pair)));
}

// A warp reads 512 columns of one row; eight warps and 16 rows for each of them make a block.
constexpr int kColumns = 512, kRows = 128;

template <class T>
__global__ void __launch_bounds__(kBlock)
    column_amax_kernel(Rows<T> m, uint32_t* amax, unsigned across, bool wide) {
  OTTAVA_SHARED(uint32_t, largest, [kColumns]);
  for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kBlock) largest[i] = 0;
  __syncthreads();
  const int64_t c0 = int64_t{blockIdx.x % across} * kColumns, r0 = int64_t{blockIdx.x / across} * kRows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t col = c0 + lane * 16;
  Sixteen own{};
#pragma unroll 4
  for (int r = static_cast<int>(threadIdx.x / 32); r < kRows; r += kBlock / 32) {
    const Sixteen piece =
        load_sixteen(m.x + (r0 + r) * m.stride + col, r0 + r < m.rows ? m.cols - col : 0, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) own.pairs[i] = max_of_pairs(own.pairs[i], piece.pairs[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    atomicMax(&largest[lane * 16 + i * 2], bits_of_low(own.pairs[i]));
    atomicMax(&largest[lane * 16 + i * 2 + 1], bits_of_high(own.pairs[i]));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns && c0 + i < m.cols; i += kBlock) {
    if (load_relaxed(amax + c0 + i) < largest[i]) atomicMax(amax + c0 + i, largest[i]);
  }
}

}  // namespace

void amax(Stream& stream, const MatrixRows& x, const Tensor& amax) {
  dispatch_element(x.dtype, "amax", [&]<class T>() {
    const T* data = pointer<T>(x);
    const bool is_whole = x.stride == x.cols;
    const Rows<T> m =
        is_whole ? Rows<T>{data, 1, x.numel(), x.numel()} : Rows<T>{data, x.rows, x.cols, x.stride};
    const int64_t pieces = m.rows * ceil_div(m.cols, int64_t{16});
    launch("amax", stream, {.grid = grid_of(ceil_div(pieces, kBlock * kPiecesPerThread)), .block = kBlock},
           is_whole ? amax_kernel<T, true> : amax_kernel<T, false>, m, pointer<uint32_t>(amax),
           rows_are_aligned(is_whole ? 16 : x.stride * int64_t{sizeof(T)}, x));
  });
}

void column_amax(Stream& stream, const MatrixRows& x, const Tensor& amax) {
  dispatch_element(x.dtype, "column_amax", [&]<class T>() {
    const int64_t across = ceil_div(x.cols, kColumns);
    launch("column_amax", stream, {.grid = grid_of(ceil_div(x.rows, kRows) * across), .block = kBlock},
           column_amax_kernel<T>, Rows<T>{pointer<T>(x), x.rows, x.cols, x.stride}, pointer<uint32_t>(amax),
           static_cast<unsigned>(across),
           x.cols % 16 == 0 && rows_are_aligned(x.stride * int64_t{sizeof(T)}, x));
  });
}

}  // namespace ottava::fp8::cuda
