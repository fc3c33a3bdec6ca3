#include "fp8/code_tile.cuh"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth. Dequantizing reads a byte and writes 2 (4) per element, transposing reads one
// and writes one.
namespace ottava::fp8::cuda {
namespace {

constexpr int kBlock = 256;

/// Both codes of the low half of a word.
template <DType kFormat>
__device__ __forceinline__ float2 decode_pair(uint32_t codes) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(codes & 0xffffu);
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(pair, kInterpretation<kFormat>);
  return {__half2float(__half(__half_raw{raw.x})), __half2float(__half(__half_raw{raw.y}))};
}

template <class T>
struct Arguments {
  const uint8_t* codes;
  const void* inverses;  // null: all are 1
  Granularity granularity;
  T* y;
  int64_t rows, cols, pieces;  // of sixteen elements in a row, which never cross a group
  bool wide;
};

template <class T, DType kFormat>
__global__ void __launch_bounds__(kBlock) dequantize_kernel(Arguments<T> a) {
  const int64_t index = thread_of_grid(kBlock);
  if (index >= a.rows * a.pieces) return;
  const int64_t row = index / a.pieces, col = index % a.pieces * 16, valid = a.cols - col,
                at = row * a.cols + col;
  const Codes codes = load_codes(a.codes + at, valid, a.wide);
  float inverse = 1;
  if (a.inverses) {
    const int64_t i = ScaleLayout(a.granularity, a.rows, a.cols)(row, col);
    inverse = a.granularity == Granularity::block_1x32
                  ? decode_e8m0(static_cast<const uint8_t*>(a.inverses)[i])
                  : static_cast<const float*>(a.inverses)[i];
  }
  constexpr int kSize = kPackSize<T>;
#pragma unroll
  for (int k = 0; k < 16 / kSize; ++k) {
    Pack<T, kSize> y;
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      const int element = k * kSize + i;
      const float2 pair = decode_pair<kFormat>(codes.values[element / 4] >> element % 4 * 8);
      y.set(i, pair.x * inverse);
      y.set(i + 1, pair.y * inverse);
    }
    if (a.wide) {
      store_pack(a.y + at, k, y);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (k * kSize + i < valid) a.y[at + k * kSize + i] = y.values[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(const uint8_t* from, TransposedTile whole, unsigned tiles_across, bool wide) {
  OTTAVA_SHARED(Codes, tile, [kTile][kTile / 16]);
  TransposedTile transposed = whole;
  transposed.first_row = int64_t{blockIdx.x / tiles_across} * kTile;
  transposed.first_col = int64_t{blockIdx.x % tiles_across} * kTile;
  const int64_t col = transposed.first_col + tile_chunk() * 16;
#pragma unroll
  for (int p = 0; p < kTilePasses; ++p) {
    const int64_t row = transposed.first_row + tile_row(p),
                  valid = row < transposed.rows ? transposed.cols - col : 0;
    put_codes(tile, tile_row(p), tile_chunk(), load_codes(from + row * transposed.cols + col, valid, wide));
  }
  __syncthreads();
  store_transposed(tile, transposed);
}

/// Some thousand words of the largest weight: the launch costs more than the work.
__global__ void __launch_bounds__(kBlock)
    transpose_scales_kernel(const float* from, int64_t from_rows, int64_t from_cols, float* to,
                            int64_t to_rows, int64_t to_cols) {
  const int64_t i = thread_of_grid(kBlock);
  if (i >= to_rows * to_cols) return;
  const int64_t c = i / to_cols, r = i % to_cols;
  to[i] = r < from_rows ? from[r * from_cols + c] : 0.0f;
}

}  // namespace

void dequantize(Stream& stream, const Float8Codes& x, Granularity granularity, const Tensor& y) {
  dispatch_element(y.dtype, "dequantize", [&]<class T>() {
    const Arguments<T> a{.codes = pointer<uint8_t>(x.codes),
                         .inverses = x.scale_inverse.data,
                         .granularity = granularity,
                         .y = pointer<T>(y),
                         .rows = y.rows(),
                         .cols = y.cols(),
                         .pieces = ceil_div(y.cols(), 16),
                         .wide = rows_are_aligned(y.cols(), x.codes, y)};
    dispatch_format(x.codes.dtype, [&]<DType kFormat>() {
      launch("dequantize", stream, one_thread_each(a.rows * a.pieces, kBlock), dequantize_kernel<T, kFormat>,
             a);
    });
  });
}

void transpose_codes(Stream& stream, const Tensor& from, const Tensor& to) {
  const int64_t rows = from.rows(), cols = from.cols(), across = ceil_div(cols, kTile);
  const TransposedTile transposed{pointer<uint8_t>(to), rows, cols, 0, 0, rows_are_aligned(rows, to)};
  launch("transpose_codes", stream, {.grid = grid_of(ceil_div(rows, kTile) * across), .block = kTileThreads},
         transpose_kernel, pointer<uint8_t>(from), transposed, static_cast<unsigned>(across),
         rows_are_aligned(cols, from));
}

void transpose_block_scales(Stream& stream, const Tensor& from, Shape, const Tensor& to) {
  launch("transpose_block_scales", stream, one_thread_each(to.numel(), kBlock), transpose_scales_kernel,
         pointer<float>(from), from.shape[0], from.shape[1], pointer<float>(to), to.shape[0], to.shape[1]);
}

}  // namespace ottava::fp8::cuda
