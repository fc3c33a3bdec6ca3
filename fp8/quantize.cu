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
  int64_t rows, cols, stride;  // elements from a row of x to the next
  QuantizeTargets to;
  unsigned tiles_across;
};

/// A block's 128 x 128 tile of x, of which a thread has sixteen neighbours in each of four rows.
struct Tile {
  int64_t r0, c0;
  int64_t col, valid;  ///< of the thread's sixteen: the first; how many exist
  int64_t rows;

  __device__ __forceinline__ int64_t row(int pass) const { return r0 + tile_row(pass); }
  __device__ __forceinline__ int64_t valid_in(int pass) const { return row(pass) < rows ? valid : 0; }
};
template <class T>
__device__ __forceinline__ Tile tile_of_block(const Arguments<T>& a) {
  Tile t{.r0 = int64_t{blockIdx.x / a.tiles_across} * kTile,
         .c0 = int64_t{blockIdx.x % a.tiles_across} * kTile};
  t.col = t.c0 + tile_chunk() * 16, t.valid = a.cols - t.col, t.rows = a.rows;
  return t;
}
template <class T>
__device__ __forceinline__ Sixteen load_of_tile(const Arguments<T>& a, const Tile& t, int pass) {
  return load_sixteen(a.x + t.row(pass) * a.stride + t.col, t.valid_in(pass), a.to.wide_rows);
}
template <class T>
__device__ __forceinline__ void count_elements(const Arguments<T>& a) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && a.to.counters) {
    atomicAdd(a.to.counters, static_cast<unsigned long long>(a.rows * a.cols));
  }
}

/// A tile in registers.
struct HeldTile : Tile {
  Sixteen x[kTilePasses];

  __device__ __forceinline__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (int p = 0; p < kTilePasses; ++p) bits = max(bits, largest_bits(x[p]));
    return bits;
  }
};
/// Reads the block's tile; measures and counts it if wanted.
template <class T>
__device__ __forceinline__ HeldTile hold_tile(const Arguments<T>& a) {
  HeldTile t{tile_of_block(a), {}};
#pragma unroll
  for (int p = 0; p < kTilePasses; ++p) t.x[p] = load_of_tile(a, t, p);
  if (a.to.largest) raise_amax(a.to.largest, t.largest());
  count_elements(a);
  return t;
}

/// The scale of the whole tensor or of the tile, by its amax; `stores` is the thread that stores the inverses
/// of both outputs.
template <DType kFormat, Granularity kGranularity, class T>
__device__ __forceinline__ float scale_of_tile(const Arguments<T>& a, const Tile& t, uint32_t amax,
                                               bool stores) {
  const QuantizeTargets& to = a.to;
  const Scale scale = scale_of_group<kFormat>(amax, to.rounding, stores ? to.non_finite : nullptr);
  // The last block of a line also clears the line's padding.
  auto store_line = [&](void* inverses, int64_t first, bool is_last) {
    store_inverse<kGranularity>(inverses, first, scale.inverse);
    for (int64_t i = first + 1; kGranularity != Granularity::tensor && is_last && i % 4 != 0; ++i) {
      store_padding<kGranularity>(inverses, i);
    }
  };
  if (stores && to.out) {
    store_line(to.out_inverse, ScaleLayout(kGranularity, a.rows, a.cols)(t.r0, t.c0), t.c0 + kTile >= a.cols);
  }
  if (stores && to.transposed) {
    store_line(to.transposed_inverse, ScaleLayout(kGranularity, a.cols, a.rows)(t.c0, t.r0),
               t.r0 + kTile >= a.rows);
  }
  return scale.scale;
}

/// Writes the tile's codes with one scale, so that the transpose has the same ones. values(p) gives the
/// thread's sixteen of pass p.
template <DType kFormat, class T, class Values>
__device__ __forceinline__ void write_uniform(const Arguments<T>& a, const Tile& t, float scale,
                                              Values&& values) {
  OTTAVA_SHARED(Codes, tile, [kTile][kTile / 16]);
  const QuantizeTargets& to = a.to;
  Losses losses{};
#pragma unroll
  for (int p = 0; p < kTilePasses; ++p) {
    const Codes codes = encode<kFormat>(
        values(p), [&](int) { return scale; }, to.counters != nullptr, losses);
    if (to.out) store_codes(to.out + t.row(p) * a.cols + t.col, codes, t.valid_in(p), to.wide_rows);
    if (to.transposed) put_codes(tile, tile_row(p), tile_chunk(), codes);
  }
  if (to.transposed) {
    __syncthreads();
    store_transposed(tile, {to.transposed, a.rows, a.cols, t.r0, t.c0, to.wide_columns});
  }
  add_losses(to.counters, losses);
}

/// One 128 x 128 tile per block, which has a scale of its own.
template <class T, DType kFormat>
__global__ void __launch_bounds__(kTileThreads, 4) tile_kernel(Arguments<T> a) {
  const HeldTile t = hold_tile(a);
  const uint32_t amax = team_max<kTileThreads>(t.largest());
  const float scale = scale_of_tile<kFormat, Granularity::block_128x128>(a, t, amax, threadIdx.x == 0);
  write_uniform<kFormat>(a, t, scale, [&](int p) { return t.x[p]; });
}

/// Whether a thread reads all of its share of a tile at once. In bf16 that is eight loads of 16 bytes, in the
/// registers of four blocks on an SM; pass by pass it would be two, of five blocks. A pass in f32 is four
/// loads already, and all of them would spill.
template <class T>
inline constexpr bool kReadsAtOnce = sizeof(T) == 2;

/// One 128 x 128 tile per block, with the tensor's scale, whose amax is given: what is read at once is under
/// way before the scale is waited for.
template <class T, DType kFormat>
__global__ void __launch_bounds__(kTileThreads, kReadsAtOnce<T> ? 4 : 5) tensor_kernel(Arguments<T> a) {
  const Tile t = tile_of_block(a);
  Sixteen all[kReadsAtOnce<T> ? kTilePasses : 1];
  if constexpr (kReadsAtOnce<T>) {
#pragma unroll
    for (int p = 0; p < kTilePasses; ++p) all[p] = load_of_tile(a, t, p);
  }
  const float scale =
      scale_of_tile<kFormat, Granularity::tensor>(a, t, *a.to.amax, blockIdx.x == 0 && threadIdx.x == 0);
  uint32_t largest = 0;
  write_uniform<kFormat>(a, t, scale, [&](int p) {
    const Sixteen x = [&] {
      if constexpr (kReadsAtOnce<T>)
        return all[p];
      else
        return load_of_tile(a, t, p);
    }();
    if (a.to.largest) largest = max(largest, largest_bits(x));
    return x;
  });
  raise_amax(a.to.largest, largest);
  count_elements(a);
}

/// `out` of a tile in which kGroup neighbours of a row share a scale.
template <int kGroup, DType kFormat, Granularity kGranularity, class T>
__device__ __forceinline__ void write_groups_of_rows(const Arguments<T>& a, const HeldTile& t,
                                                     Losses& losses) {
  constexpr int kLanes = kGroup / 16;  // that share a group
  constexpr bool kTiled = traits(kGranularity).is_tiled;
  const QuantizeTargets& to = a.to;
  const ScaleLayout layout(kGranularity, a.rows, a.cols);
  const bool leads = tile_chunk() % kLanes == 0;
#pragma unroll
  for (int p = 0; p < kTilePasses; ++p) {
    const int64_t row = t.row(p), here = t.valid_in(p);
    uint32_t amax = largest_bits(t.x[p]);
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      amax = max(amax, __shfl_xor_sync(kAllLanes, amax, offset));
    }
    const Scale own = scale_of_group<kFormat>(amax, to.rounding, leads ? to.non_finite : nullptr);
    if (leads && here > 0) {
      store_inverse<kGranularity>(to.out_inverse, layout(row, t.col), own.inverse);
    } else if (leads && kTiled) {
      store_padding<kGranularity>(to.out_inverse, layout(row, t.col));
    }
    const Codes codes = encode<kFormat>(
        t.x[p], [&](int) { return own.scale; }, to.counters != nullptr, losses);
    store_codes(to.out + row * a.cols + t.col, codes, here, to.wide_rows);
  }
}

/// Bits by column, of each of the bands of a tile's rows that have scales of their own.
template <int kBands>
using ColumnGroups = uint32_t[kBands][kTile];

/// Raises the amaxes of the tile's columns.
template <int kBands>
__device__ __forceinline__ void measure_columns(const HeldTile& t, ColumnGroups<kBands>& groups) {
  uint32_t largest[8] = {};
#pragma unroll
  for (int p = 0; p < kTilePasses; ++p) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      largest[j] = max_of_pairs(largest[j], t.x[p].pairs[j]);
      if (kBands == 1 && p < kTilePasses - 1) continue;
      uint32_t pair = max_of_pairs(largest[j], __shfl_xor_sync(kAllLanes, largest[j], 8));
      pair = max_of_pairs(pair, __shfl_xor_sync(kAllLanes, pair, 16));
      largest[j] = 0;
      // The four rows of a warp know the same now: each raises its share.
      if (static_cast<int>(threadIdx.x % 32) / 8 != j / 2) continue;
      uint32_t* group = &groups[kBands == 1 ? 0 : p][tile_chunk() * 16 + j * 2];
      atomicMax(group, bits_of_low(pair));
      atomicMax(group + 1, bits_of_high(pair));
    }
  }
}

/// Scales of the tile's columns in place of their amaxes; stores the inverses.
template <int kBands, DType kFormat, Granularity kGranularity, class T>
__device__ __forceinline__ void scale_columns(const Arguments<T>& a, const HeldTile& t,
                                              ColumnGroups<kBands>& groups) {
  const QuantizeTargets& to = a.to;
  constexpr bool kTiled = traits(kGranularity).is_tiled;
  const ScaleLayout layout(kGranularity, a.cols, a.rows);
  for (int i = static_cast<int>(threadIdx.x); i < kBands * kTile; i += kTileThreads) {
    uint32_t& group = groups[i / kTile][i % kTile];
    const int64_t c = t.c0 + i % kTile, r = t.r0 + i / kTile * (kTile / kBands);
    const Scale own = scale_of_group<kFormat>(group, to.rounding, to.non_finite);
    group = __float_as_uint(own.scale);
    // Tiles one above the other share the scale of a whole column; the topmost writes it.
    if (c < a.cols && r < a.rows && (kGranularity != Granularity::row || t.r0 == 0)) {
      store_inverse<kGranularity>(to.transposed_inverse, layout(c, r), own.inverse);
    } else if (kTiled) {
      store_padding<kGranularity>(to.transposed_inverse, layout(c, r));
    }
  }
}

/// One 128 x 128 tile per block, whose rows and columns have scales of their own. Those of whole columns come
/// from outside; `out` with those of whole rows is quantize_rows()'s.
template <class T, DType kFormat, Granularity kGranularity>
__global__ void __launch_bounds__(kTileThreads, 4) grouped_kernel(Arguments<T> a) {
  constexpr bool kWholeColumns = kGranularity == Granularity::row;
  constexpr int kGroup = kWholeColumns ? kTile : static_cast<int>(traits(kGranularity).block_columns),
                kBands = kTile / kGroup;
  OTTAVA_SHARED(Codes, tile, [kTile][kTile / 16]);
  OTTAVA_SHARED(uint32_t, groups, [kBands][kTile]);
  const QuantizeTargets& to = a.to;
  const HeldTile t = hold_tile(a);
  Losses losses{};
  if constexpr (!kWholeColumns) {
    if (to.out) write_groups_of_rows<kGroup, kFormat, kGranularity>(a, t, losses);
  }
  if (to.transposed) {
    for (int i = static_cast<int>(threadIdx.x); i < kBands * kTile; i += kTileThreads) {
      const int64_t c = t.c0 + i % kTile;
      groups[i / kTile][i % kTile] = kWholeColumns && c < a.cols ? to.column_amax[c] : 0;
    }
    __syncthreads();
    if constexpr (!kWholeColumns) {
      measure_columns<kBands>(t, groups);
      __syncthreads();
    }
    scale_columns<kBands, kFormat, kGranularity>(a, t, groups);
    __syncthreads();
    const bool count = to.counters && !to.out;
#pragma unroll
    for (int p = 0; p < kTilePasses; ++p) {
      const uint32_t* scales = &groups[kBands == 1 ? 0 : p][tile_chunk() * 16];
      const Codes codes = encode<kFormat>(
          t.x[p], [&](int i) { return __uint_as_float(scales[i]); }, count, losses);
      put_codes(tile, tile_row(p), tile_chunk(), codes);
    }
    __syncthreads();
    store_transposed(tile, {to.transposed, a.rows, a.cols, t.r0, t.c0, to.wide_columns});
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
      return start(tensor_kernel<T, kFormat>);
    case Granularity::row:
      return start(grouped_kernel<T, kFormat, Granularity::row>);
    case Granularity::block_1x128:
      return start(grouped_kernel<T, kFormat, Granularity::block_1x128>);
    case Granularity::block_128x128:
      return start(tile_kernel<T, kFormat>);
    case Granularity::block_1x32:
      return start(grouped_kernel<T, kFormat, Granularity::block_1x32>);
  }
}

QuantizeTargets targets_of(const Quantize& q) {
  const MatrixRows x = x_of(q);
  return {.out = pointer<uint8_t>(q.out.codes),
          .transposed = pointer<uint8_t>(q.transposed.codes),
          .out_inverse = q.out.scale_inverse.data,
          .transposed_inverse = q.transposed.scale_inverse.data,
          .amax = pointer<uint32_t>(q.amax),
          .column_amax = pointer<uint32_t>(q.column_amax),
          .counters = pointer<unsigned long long>(q.counters),
          .non_finite = pointer<uint32_t>(q.non_finite),
          .largest = pointer<uint32_t>(q.largest),
          .rounding = q.rounding,
          .wide_rows = rows_are_aligned(x.cols, x, q.out.codes) && rows_are_aligned(x.stride),
          .wide_columns = rows_are_aligned(x.rows, q.transposed.codes)};
}

}  // namespace

void quantize(Stream& stream, const Quantize& q) {
  QuantizeTargets to = targets_of(q);
  const MatrixRows x = x_of(q);
  if (q.granularity == Granularity::row && to.out) {
    quantize_rows(stream, q, to);
    if (!to.transposed) return;
    to.out = nullptr;  // a row's scale is known only at its end, so that tiles cannot make it
    to.counters = nullptr;
    to.largest = nullptr;
  }
  const int64_t across = ceil_div(x.cols, kTile);
  // Even a tensor without elements has a scale.
  int64_t tiles = ceil_div(x.rows, kTile) * across;
  if (q.granularity == Granularity::tensor && tiles == 0) tiles = 1;
  const DType format = (q.out.empty() ? q.transposed : q.out).codes.dtype;
  dispatch_element(x.dtype, "quantize", [&]<class T>() {
    const Arguments<T> a{pointer<T>(x), x.rows, x.cols,
                         x.stride,      to,     static_cast<unsigned>(across > 0 ? across : 1)};
    dispatch_format(format,
                    [&]<DType kFormat>() { launch_tiles<T, kFormat>(stream, q.granularity, a, tiles); });
  });
}

}  // namespace ottava::fp8::cuda
