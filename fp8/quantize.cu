#include "fp8/code_tile.cuh"
#include "fp8/quantize_cuda.h"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth. A tile is read once, 2 bytes per bf16 element, and stays in registers while its
// groups are measured; a byte per element and output is written. About 5 instructions per element and output,
// 3 more to count.
namespace ottava::fp8::cuda {
namespace {

template <class T>
struct Arguments {
  const T* x;
  int64_t rows, cols;
  QuantizeTargets to;
  unsigned tiles_across;
};

/// One 128 x 128 tile per block. Scales that one tile cannot know come from outside: the tensor's, and those
/// of whole columns.
template <class T, DType kFormat, Granularity kGranularity>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(Arguments<T> a) {
  constexpr bool kMx = kGranularity == Granularity::block_1x32,
                 kLine = kGranularity == Granularity::block_1x128;
  constexpr bool kSquare = kGranularity == Granularity::block_128x128,
                 kTensor = kGranularity == Granularity::tensor;
  constexpr bool kUniform = kTensor || kSquare;  // the transpose has the same codes
  constexpr int kBands = kMx ? 4 : 1;            // groups of a column inside the tile
  OTTAVA_SHARED(Codes, tile, [kTile][kTile / 16]);
  const QuantizeTargets& to = a.to;
  const int64_t r0 = int64_t{blockIdx.x / a.tiles_across} * kTile,
                c0 = int64_t{blockIdx.x % a.tiles_across} * kTile;
  const int chunk = tile_chunk();
  const int64_t col = c0 + chunk * 16, valid = a.cols - col;
  const ScaleLayout layout(kGranularity, a.rows, a.cols), turned_layout(kGranularity, a.cols, a.rows);
  const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
  if (is_first && to.counters) atomicAdd(to.counters, static_cast<unsigned long long>(a.rows * a.cols));

  Sixteen x[kTilePasses];
#pragma unroll
  for (int p = 0; p < kTilePasses; ++p) {
    const int64_t row = r0 + tile_row(p);
    x[p] = load_sixteen(a.x + row * a.cols + col, row < a.rows ? valid : 0, to.wide_rows);
  }

  if (to.largest) {
    uint32_t largest = 0;
#pragma unroll
    for (int p = 0; p < kTilePasses; ++p) largest = max(largest, largest_bits(x[p]));
    raise_amax(to.largest, largest);
  }

  Scale uniform;
  if constexpr (kTensor) {
    uniform = scale_of_group<kFormat>(*to.amax, to.rounding, is_first ? to.non_finite : nullptr);
    if (is_first && to.out) *static_cast<float*>(to.out_inverse) = uniform.inverse;
    if (is_first && to.transposed) *static_cast<float*>(to.transposed_inverse) = uniform.inverse;
  } else if constexpr (kSquare) {
    uint32_t largest = 0;
#pragma unroll
    for (int p = 0; p < kTilePasses; ++p) largest = max(largest, largest_bits(x[p]));
    largest = team_max<kTileThreads>(largest);
    uniform = scale_of_group<kFormat>(largest, to.rounding, threadIdx.x == 0 ? to.non_finite : nullptr);
    // The last block of a line also clears the line's padding.
    auto store_line = [&](void* inverses, int64_t first, bool is_last) {
      store_inverse<kGranularity>(inverses, first, uniform.inverse);
      for (int64_t i = first + 1; is_last && i % 4 != 0; ++i) store_padding<kGranularity>(inverses, i);
    };
    if (threadIdx.x == 0 && to.out) store_line(to.out_inverse, layout(r0, c0), c0 + kTile >= a.cols);
    if (threadIdx.x == 0 && to.transposed) {
      store_line(to.transposed_inverse, turned_layout(c0, r0), r0 + kTile >= a.rows);
    }
  }

  Losses losses;
  if (kUniform || (to.out && (kLine || kMx))) {
#pragma unroll
    for (int p = 0; p < kTilePasses; ++p) {
      const int64_t row = r0 + tile_row(p);
      const int64_t here = row < a.rows ? valid : 0;
      float scale = uniform.scale;
      if constexpr (!kUniform) {
        constexpr int kLanes = kMx ? 2 : 8;  // that share a group of the row
        uint32_t amax = largest_bits(x[p]);
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2) {
          amax = max(amax, __shfl_xor_sync(kAllLanes, amax, offset));
        }
        const bool leads = chunk % kLanes == 0;
        const Scale own = scale_of_group<kFormat>(amax, to.rounding, leads ? to.non_finite : nullptr);
        scale = own.scale;
        if (leads && here > 0) {
          store_inverse<kGranularity>(to.out_inverse, layout(row, col), own.inverse);
        } else if (leads && kMx) {
          store_padding<kGranularity>(to.out_inverse, layout(row, col));
        }
      }
      const Codes codes = encode<kFormat>(
          x[p], [&](int) { return scale; }, to.counters != nullptr, losses);
      if (to.out) store_codes(to.out + row * a.cols + col, codes, here, to.wide_rows);
      if (kUniform && to.transposed) put_codes(tile, tile_row(p), chunk, codes);
    }
  }

  if (to.transposed) {
    if constexpr (!kUniform) {
      // Amaxes of the tile's columns, then their scales.
      OTTAVA_SHARED(uint32_t, groups, [kBands][kTile]);
      for (int i = static_cast<int>(threadIdx.x); i < kBands * kTile; i += kTileThreads) {
        const int64_t c = c0 + i % kTile;
        groups[i / kTile][i % kTile] = kGranularity == Granularity::row && c < a.cols ? to.column_amax[c] : 0;
      }
      __syncthreads();
      if constexpr (kGranularity != Granularity::row) {
        uint32_t largest[8] = {};
#pragma unroll
        for (int p = 0; p < kTilePasses; ++p) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            largest[j] = max_of_pairs(largest[j], x[p].pairs[j]);
            if (kBands == 1 && p < kTilePasses - 1) continue;
            uint32_t pair = max_of_pairs(largest[j], __shfl_xor_sync(kAllLanes, largest[j], 8));
            pair = max_of_pairs(pair, __shfl_xor_sync(kAllLanes, pair, 16));
            largest[j] = 0;
            // The four rows of a warp know the same now: each raises its share.
            if (static_cast<int>(threadIdx.x % 32) / 8 != j / 2) continue;
            uint32_t* group = &groups[kBands == 1 ? 0 : p][chunk * 16 + j * 2];
            atomicMax(group, bits_of_low(pair));
            atomicMax(group + 1, bits_of_high(pair));
          }
        }
        __syncthreads();
      }
      for (int i = static_cast<int>(threadIdx.x); i < kBands * kTile; i += kTileThreads) {
        const int band = i / kTile;
        const int64_t c = c0 + i % kTile, r = r0 + band * (kTile / kBands);
        const Scale own = scale_of_group<kFormat>(groups[band][i % kTile], to.rounding, to.non_finite);
        groups[band][i % kTile] = __float_as_uint(own.scale);
        const bool exists = c < a.cols && r < a.rows;
        // Tiles one above the other share the scale of a whole column; the topmost writes it.
        if (exists && (kGranularity != Granularity::row || r0 == 0)) {
          store_inverse<kGranularity>(to.transposed_inverse, turned_layout(c, r), own.inverse);
        } else if (kMx) {
          store_padding<kGranularity>(to.transposed_inverse, turned_layout(c, r));
        }
      }
      __syncthreads();
      const bool count = to.counters && !to.out;
#pragma unroll
      for (int p = 0; p < kTilePasses; ++p) {
        const uint32_t* scales = &groups[kBands == 1 ? 0 : p][chunk * 16];
        const Codes codes = encode<kFormat>(
            x[p], [&](int i) { return __uint_as_float(scales[i]); }, count, losses);
        put_codes(tile, tile_row(p), chunk, codes);
      }
    }
    __syncthreads();
    store_turned(tile, {to.transposed, a.rows, a.cols, r0, c0, to.wide_columns});
  }
  add_losses(to.counters, losses);
}

template <class T, DType kFormat>
void launch_tiles(Stream& stream, Granularity granularity, const Arguments<T>& a, int64_t tiles) {
  auto start = [&](void (*kernel)(Arguments<T>)) {
    launch("quantize", stream, {.grid = grid_of(tiles), .block = kTileThreads}, kernel, a);
  };
  switch (granularity) {
    case Granularity::tensor:
      return start(tile_kernel<T, kFormat, Granularity::tensor>);
    case Granularity::row:
      return start(tile_kernel<T, kFormat, Granularity::row>);
    case Granularity::block_1x128:
      return start(tile_kernel<T, kFormat, Granularity::block_1x128>);
    case Granularity::block_128x128:
      return start(tile_kernel<T, kFormat, Granularity::block_128x128>);
    case Granularity::block_1x32:
      return start(tile_kernel<T, kFormat, Granularity::block_1x32>);
  }
}

QuantizeTargets targets_of(const Quantize& q) {
  const int64_t rows = q.x.rows(), cols = q.x.cols();
  return {.out = static_cast<uint8_t*>(q.out.codes.data),
          .transposed = static_cast<uint8_t*>(q.transposed.codes.data),
          .out_inverse = q.out.scale_inverse.data,
          .transposed_inverse = q.transposed.scale_inverse.data,
          .amax = static_cast<const uint32_t*>(q.amax.data),
          .column_amax = static_cast<const uint32_t*>(q.column_amax.data),
          .counters = static_cast<unsigned long long*>(q.counters.data),
          .non_finite = static_cast<uint32_t*>(q.non_finite.data),
          .largest = static_cast<uint32_t*>(q.largest.data),
          .rounding = q.rounding,
          .wide_rows = rows_are_aligned(cols, q.x, q.out.codes),
          .wide_columns = rows_are_aligned(rows, q.transposed.codes)};
}

}  // namespace

void quantize(Stream& stream, const Quantize& q) {
  QuantizeTargets to = targets_of(q);
  const int64_t rows = q.x.rows(), cols = q.x.cols();
  if (q.granularity == Granularity::row && to.out) {
    quantize_rows(stream, q, to);
    if (!to.transposed) return;
    to.out = nullptr;  // a row's scale is known only at its end, so that tiles cannot make it
    to.counters = nullptr;
    to.largest = nullptr;
  }
  const int64_t across = ceil_div(cols, kTile);
  // A tensor without elements has a scale all the same.
  int64_t tiles = ceil_div(rows, kTile) * across;
  if (q.granularity == Granularity::tensor && tiles == 0) tiles = 1;
  const DType format = (q.out.empty() ? q.transposed : q.out).codes.dtype;
  dispatch_float(q.x.dtype, "quantize", [&]<class Host>() {
    using T = Element<Host>;
    const Arguments<T> a{static_cast<const T*>(q.x.data), rows, cols, to,
                         static_cast<unsigned>(across > 0 ? across : 1)};
    dispatch_format(format,
                    [&]<DType kFormat>() { launch_tiles<T, kFormat>(stream, q.granularity, a, tiles); });
  });
}

}  // namespace ottava::fp8::cuda
