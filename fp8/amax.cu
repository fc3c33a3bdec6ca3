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

constexpr int kWarps = kBlock / 32, kRowsAtOnce = 8;  // of a warp
/// Columns of a block: a warp reads 512 bytes of a row at once.
template <class T>
constexpr int kColumns = 32 * kPackSize<T>;

/// kPackSize<T> values of a row from column `col` on; past the last column some that are not asked for.
template <class T, bool kWide>
__device__ __forceinline__ Pack<T, kPackSize<T>> load_columns(const T* row, int64_t col, int64_t cols) {
  Pack<T, kPackSize<T>> pack;
  if constexpr (kWide) {
    pack = load_pack<T, kPackSize<T>>(row + min(col, cols - kPackSize<T>), 0);
  } else {
#pragma unroll
    for (int j = 0; j < kPackSize<T>; ++j) pack.values[j] = row[min(col + j, cols - 1)];
  }
  return pack;
}

/// Of kColumns columns of rows_each rows per block. Each of eight warps reads every eighth row, eight of them
/// at once, and a lane has the same columns of all. Past the last row the last is read again, which changes
/// no maximum, so that no branch stands between two loads. kWide: rows are made of whole packs.
template <class T, bool kWide>
__global__ void __launch_bounds__(kBlock, 4)
    column_amax_kernel(Rows<T> m, uint32_t* amax, unsigned across, int rows_each) {
  constexpr int kPairs = kPackSize<T> / 2, kAtOnce = kWide ? kRowsAtOnce : 1;
  using Pairs = Pack<uint32_t, kPairs>;
  OTTAVA_SHARED(Pairs, of_warps, [kWarps][32]);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t c0 = int64_t{blockIdx.x % across} * kColumns<T>,
                r0 = int64_t{blockIdx.x / across} * rows_each;
  const int last_row = static_cast<int>(min(m.rows - r0, int64_t{rows_each})) - 1;
  // What a thread shall raise is on its way meanwhile. Others may raise it since; then it stays theirs.
  const unsigned column = threadIdx.x;
  const bool raises = column < kColumns<T> && c0 + column < m.cols;
  const uint32_t known = raises ? load_relaxed(amax + c0 + column) : 0;

  const T* const rows = m.x + r0 * m.stride;
  Pairs largest{};
  for (int first = warp; first <= last_row; first += kWarps * kAtOnce) {
    Pack<T, kPackSize<T>> loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const T* row = rows + static_cast<unsigned>(min(first + k * kWarps, last_row)) * m.stride;
      loaded[k] = load_columns<T, kWide>(row, c0 + lane * kPackSize<T>, m.cols);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        uint32_t pair;
        if constexpr (sizeof(T) == 2) {
          pair = reinterpret_cast<const uint32_t*>(loaded[k].values)[j];
        } else {
          pair = pack_bf16(loaded[k][2 * j], loaded[k][2 * j + 1]);
        }
        largest.values[j] = __vmaxu2(largest.values[j], pair & 0x7fff7fffu);
      }
    }
  }
  of_warps[warp][lane] = largest;
  __syncthreads();
  if (!raises) return;
  uint32_t pair = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    pair = __vmaxu2(pair, of_warps[w][column / kPackSize<T>].values[column % kPackSize<T> / 2]);
  }
  const uint32_t bits = column % 2 ? bits_of_high(pair) : bits_of_low(pair);
  if (known < bits) atomicMax(amax + c0 + column, bits);
}

/// Rows of a block: as few as are read at once, so that the last blocks end together, but more where there
/// are thousands of blocks anyway, since each looks at the maxima of all its columns.
int64_t rows_of_block(int64_t rows, int64_t across) {
  int64_t each = kWarps * kRowsAtOnce;
  while (each < 512 && ceil_div(rows, each) * across > 8192) each *= 2;
  return each;
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
    const int64_t across = ceil_div(x.cols, int64_t{kColumns<T>}), each = rows_of_block(x.rows, across);
    const bool wide = x.cols % kPackSize<T> == 0 && rows_are_aligned(x.stride * int64_t{sizeof(T)}, x);
    launch("column_amax", stream, {.grid = grid_of(ceil_div(x.rows, each) * across), .block = kBlock},
           wide ? column_amax_kernel<T, true> : column_amax_kernel<T, false>,
           Rows<T>{pointer<T>(x), x.rows, x.cols, x.stride}, pointer<uint32_t>(amax),
           static_cast<unsigned>(across), static_cast<int>(each));
  });
}

}  // namespace ottava::fp8::cuda
