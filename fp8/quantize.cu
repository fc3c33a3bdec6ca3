#include "fp8/quantize_cuda.h"
#include "fp8/quantize_kernels.h"
#include "fp8/value_tile.cuh"

// Ceiling: memory bandwidth. A tile is read once, 2 bytes per bf16 element, and stays in registers while its
// groups are measured; a byte per element and output is written. With both outputs, scales per 1x128 and
// counters, a warp takes about 1250 instructions for 2048 elements: 128 to multiply, 64 to convert, about as
// many as both to take pairs apart, the rest to measure, to find scales and to move codes.
namespace ottava::fp8::cuda {
namespace {

using FourScales = Pack<float, 4>;

template <class T>
struct Arguments {
  const T* x;
  int64_t rows, cols, stride;  // elements from a row of x to the next
  QuantizeTargets to;
};

/// How a block shares its tile. A thread has all of its values under way at once: 16 rows of bf16, in up to
/// 80 registers, or 8 of f32, in 64.
template <class T, bool kWide>
using Team = TileTeam<sizeof(T) == 2 ? 8 : 16, kWide ? (sizeof(T) == 2 ? 3 : 2) : 1, kWide>;

template <class Team, class T>
__device__ __forceinline__ TilePlace<Team> tile_of_block(const Arguments<T>& a) {
  return place_of<Team>(a.rows, a.cols, int64_t{blockIdx.y} * kTile, int64_t{blockIdx.x} * kTile);
}
__device__ __forceinline__ bool is_first_thread() {
  return blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0;
}
template <class T>
__device__ __forceinline__ void count_elements(const Arguments<T>& a) {
  if (is_first_thread() && a.to.counters) {
    atomicAdd(a.to.counters, static_cast<unsigned long long>(a.rows * a.cols));
  }
}

/// Raises *amax by one thread of those that know `bits`. It waits for memory, which nothing else must wait
/// for.
__device__ __forceinline__ void raise_known(uint32_t* amax, uint32_t bits) {
  if (load_relaxed(amax) < bits) atomicMax(amax, bits);
}

/// The scale of the whole tensor or of the tile, by its amax; `stores` is the thread that stores the inverses
/// of both outputs.
template <DType kFormat, Granularity kGranularity, class T, class Team>
__device__ __forceinline__ Scale scale_of_tile(const Arguments<T>& a, const TilePlace<Team>& t, uint32_t amax,
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
  return scale;
}

/// Writes the tile's codes with one scale, so that the transpose has the same ones. Own: the scale is that of
/// the tile's amax, with which only values that are not finite are past the largest code.
template <DType kFormat, bool kOwn, class T, class Team, int kRows>
__device__ __forceinline__ void write_uniform(const Arguments<T>& a, const TilePlace<Team>& t,
                                              const Strip<kRows>& x, Scale scale) {
  OTTAVA_SHARED(Codes, tile, [kTile][kTile / 16]);
  const QuantizeTargets& to = a.to;
  uint32_t columns[4][kRows / 4];
  Losses losses{};
  uint8_t* out = to.out + t.row * t.cols + t.col;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    uint32_t w[4];
    LossWatch<kFormat, !kOwn> watch;
#pragma unroll
    for (int r = 0; r < 4; ++r, out += t.cols) {
      w[r] = encode_row<kFormat>(x, i * 4 + r, scale.scale);
      watch.see(w[r]);
      if (to.out) store_row(out, t, i * 4 + r, w[r]);
    }
    if (to.counters && (watch.suspects() || (kOwn && !scale.finite))) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const auto& pairs = x.pairs[i * 4 + r];
        count_losses<kFormat>(w[r], pairs[0], pairs[1], scale.scale, losses);
      }
    }
    for_each_column(w, [&](int j, uint32_t codes) { columns[j][i] = codes; });
  }
  if (to.transposed) {
#pragma unroll
    for (int j = 0; j < 4; ++j) put_column<Team>(tile, j, columns[j]);
    __syncthreads();
    store_columns(tile, t, to.transposed);
  }
  add_losses(to.counters, losses);
}

/// One 128 x 128 tile per block, which has a scale of its own.
template <class T, class Team, DType kFormat>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks) tile_kernel(Arguments<T> a) {
  const auto t = tile_of_block<Team>(a);
  const auto x = load_strip(a.x, a.stride, t);
  const uint32_t amax = team_max<Team::kThreads>(measure(x).bits());
  const Scale scale = scale_of_tile<kFormat, Granularity::block_128x128>(a, t, amax, threadIdx.x == 0);
  write_uniform<kFormat, true>(a, t, x, scale);
  count_elements(a);
  if (threadIdx.x == 0 && a.to.largest) raise_known(a.to.largest, amax);
}

/// One 128 x 128 tile per block, with the tensor's scale, whose amax is given: what is read is under way
/// before the scale is waited for.
template <class T, class Team, DType kFormat>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks) tensor_kernel(Arguments<T> a) {
  const auto t = tile_of_block<Team>(a);
  const auto x = load_strip(a.x, a.stride, t);
  const Scale scale = scale_of_tile<kFormat, Granularity::tensor>(a, t, *a.to.amax, is_first_thread());
  const uint32_t largest = a.to.largest ? measure(x).bits() : 0;
  write_uniform<kFormat, false>(a, t, x, scale);
  count_elements(a);
  raise_amax(a.to.largest, largest);
}

/// `out` of a tile in which kGroup neighbours of a row share a scale.
template <int kGroup, DType kFormat, Granularity kGranularity, class T, class Team, int kRows>
__device__ __forceinline__ void write_groups_of_rows(const Arguments<T>& a, const TilePlace<Team>& t,
                                                     const Strip<kRows>& x, const Largest<kRows>& largest,
                                                     Losses& losses) {
  constexpr int kLanes = kGroup / 4;                          // that share a group
  constexpr int kEach = kRows > kLanes ? kRows / kLanes : 1;  // rows whose scale a lane makes
  static_assert(kEach <= 2);
  constexpr bool kTiled = traits(kGranularity).is_tiled;
  // A piece more than needed, so that groups do not meet in a bank.
  OTTAVA_SHARED(FourScales, all_scales, [Team::kWarps][32 / kLanes][kRows / 4 + 1]);
  const QuantizeTargets& to = a.to;
  const ScaleLayout layout(kGranularity, a.rows, a.cols);
  const int lane = lane_of_thread(), group = lane / kLanes, in_group = lane % kLanes;
  FourScales* scales = all_scales[warp_of_thread()][group];
  const uint32_t pair = largest_of_rows<kLanes>(largest);
  bool finite = true;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int half = kEach == 2 ? k : in_group / (kRows / 2) % 2;
    const int r = in_group % (kRows / 2) * 2 + half;
    const bool leads = in_group < kRows;
    const Scale own = scale_of_group<kFormat>(half ? bits_of_high(pair) : bits_of_low(pair), to.rounding,
                                              leads ? to.non_finite : nullptr);
    finite = finite && own.finite;
    if (!leads) continue;
    scales[r / 4].values[r % 4] = own.scale;
    const int64_t row = t.row + r, col = t.c0 + group * kGroup;
    if (row < a.rows && col < a.cols) {
      store_inverse<kGranularity>(to.out_inverse, layout(row, col), own.inverse);
    } else if (kTiled) {
      store_padding<kGranularity>(to.out_inverse, layout(row, col));
    }
  }
  __syncwarp(kAllLanes);
  finite = !__any_sync(kAllLanes, !finite);
  uint8_t* out = to.out + t.row * t.cols + t.col;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const FourScales four = scales[i];
    uint32_t w[4];
    LossWatch<kFormat, false> watch;
#pragma unroll
    for (int k = 0; k < 4; ++k, out += t.cols) {
      w[k] = encode_row<kFormat>(x, i * 4 + k, four.values[k]);
      watch.see(w[k]);
      store_row(out, t, i * 4 + k, w[k]);
    }
    if (to.counters && (watch.suspects() || !finite)) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto& pairs = x.pairs[i * 4 + k];
        count_losses<kFormat>(w[k], pairs[0], pairs[1], four.values[k], losses);
      }
    }
  }
}

/// What each warp knows of the tile's columns, two to a word.
using OneOfColumns = Pack<uint32_t, 2>;
template <class Team>
using ColumnPairs = OneOfColumns[Team::kWarps][32];

/// The amaxes of the thread's columns: of whole columns from outside, else of the tile's bands of kGroup
/// rows.
template <int kGroup, bool kWhole, class T, class Team>
__device__ __forceinline__ void largest_of_columns(const Arguments<T>& a, const TilePlace<Team>& t,
                                                   const ColumnPairs<Team>& of_warps, uint32_t (&amax)[4]) {
  if constexpr (kWhole) {
#pragma unroll
    for (int j = 0; j < 4; ++j) amax[j] = t.col + j < a.cols ? a.to.column_amax[t.col + j] : 0;
  } else {
    constexpr int kSharing = kGroup / Team::kRows;
    const int first = warp_of_thread() / kSharing * kSharing;
    uint32_t pairs[2] = {};
#pragma unroll
    for (int w = 0; w < kSharing; ++w) {
      const auto of_warp = of_warps[first + w][lane_of_thread()];
#pragma unroll
      for (int j = 0; j < 2; ++j) pairs[j] = __vmaxu2(pairs[j], of_warp.values[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) amax[j] = j % 2 ? bits_of_high(pairs[j / 2]) : bits_of_low(pairs[j / 2]);
  }
}

/// `transposed` of a tile in which kGroup neighbours of a column share a scale.
template <int kGroup, DType kFormat, Granularity kGranularity, class T, class Team, int kRows>
__device__ __forceinline__ void write_groups_of_columns(const Arguments<T>& a, const TilePlace<Team>& t,
                                                        const Strip<kRows>& x,
                                                        const ColumnPairs<Team>& of_warps, Losses& losses) {
  constexpr bool kWhole = kGranularity == Granularity::row, kTiled = traits(kGranularity).is_tiled;
  OTTAVA_SHARED(Codes, tile, [kTile][kTile / 16]);
  const QuantizeTargets& to = a.to;
  uint32_t amax[4];
  largest_of_columns<kGroup, kWhole>(a, t, of_warps, amax);
  const ScaleLayout layout(kGranularity, a.cols, a.rows);
  // Threads whose rows share a scale all make it; those with the first rows store it. Tiles one above the
  // other share the scale of a whole column; the topmost writes it.
  const bool stores = t.row % kGroup == 0 && !(kWhole && t.r0 > 0);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const Scale own = scale_of_group<kFormat>(amax[j], to.rounding, stores ? to.non_finite : nullptr);
    const int64_t c = t.col + j, r = t.row;
    if (stores && c < a.cols && r < a.rows) {
      store_inverse<kGranularity>(to.transposed_inverse, layout(c, r), own.inverse);
    } else if (stores && kTiled) {
      store_padding<kGranularity>(to.transposed_inverse, layout(c, r));
    }
    uint32_t codes[kRows / 4];
    LossWatch<kFormat, kWhole> watch;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      codes[i] = encode_column<kFormat>(x, i * 4, j, own.scale);
      watch.see(codes[i]);
    }
    put_column<Team>(tile, j, codes);
    if (!to.counters || to.out || !(watch.suspects() || !own.finite)) continue;
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const auto pair = [&](int r) {
        return __byte_perm(x.pairs[r][j / 2], x.pairs[r + 1][j / 2], j % 2 ? 0x7632 : 0x5410);
      };
      count_losses<kFormat>(codes[i / 4], pair(i), pair(i + 2), own.scale, losses);
    }
  }
  __syncthreads();
  store_columns(tile, t, to.transposed);
}

/// One 128 x 128 tile per block, whose rows and columns have scales of their own. Those of whole columns come
/// from outside; `out` with those of whole rows is quantize_rows()'s.
template <class T, class Team, DType kFormat, Granularity kGranularity>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks) grouped_kernel(Arguments<T> a) {
  constexpr bool kWholeColumns = kGranularity == Granularity::row;
  constexpr int kGroup = kWholeColumns ? kTile : static_cast<int>(traits(kGranularity).block_columns);
  const auto t = tile_of_block<Team>(a);
  const auto x = load_strip(a.x, a.stride, t);
  OTTAVA_SHARED(OneOfColumns, of_warps, [Team::kWarps][32]);
  Losses losses{};
  uint32_t bits = 0;
  if (!kWholeColumns || a.to.largest) {
    const auto largest = measure(x);
    bits = largest.bits();
    if constexpr (!kWholeColumns) {
      of_warps[warp_of_thread()][lane_of_thread()] = {largest.columns[0], largest.columns[1]};
      if (a.to.out) write_groups_of_rows<kGroup, kFormat, kGranularity>(a, t, x, largest, losses);
    }
  }
  if (a.to.transposed) {
    if (!kWholeColumns) __syncthreads();
    write_groups_of_columns<kGroup, kFormat, kGranularity>(a, t, x.again(), of_warps, losses);
  }
  count_elements(a);
  raise_amax(a.to.largest, bits);
  add_losses(a.to.counters, losses);
}

template <class T, class Team, DType kFormat>
void launch_tiles(Stream& stream, Granularity granularity, const Arguments<T>& a, dim3 tiles) {
  auto start = [&](void (*kernel)(Arguments<T>)) {
    launch("quantize", stream, {.grid = tiles, .block = Team::kThreads}, kernel, a);
  };
  switch (granularity) {
    case Granularity::tensor:
      return start(tensor_kernel<T, Team, kFormat>);
    case Granularity::row:
      return start(grouped_kernel<T, Team, kFormat, Granularity::row>);
    case Granularity::block_1x128:
      return start(grouped_kernel<T, Team, kFormat, Granularity::block_1x128>);
    case Granularity::block_128x128:
      return start(tile_kernel<T, Team, kFormat>);
    case Granularity::block_1x32:
      return start(grouped_kernel<T, Team, kFormat, Granularity::block_1x32>);
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
  // Even a tensor without elements has a scale.
  const auto tiles_of = [&](int64_t extent) {
    const int64_t tiles = ceil_div(extent, kTile);
    return tiles == 0 && q.granularity == Granularity::tensor ? 1 : tiles;
  };
  const dim3 tiles(grid_of(tiles_of(x.cols)), grid_of_yz(tiles_of(x.rows)));
  const DType format = (q.out.empty() ? q.transposed : q.out).codes.dtype;
  dispatch_element(x.dtype, "quantize", [&]<class T>() {
    const Arguments<T> a{pointer<T>(x), x.rows, x.cols, x.stride, to};
    const bool wide = (!to.out && !to.transposed) || (to.wide_rows && (!to.transposed || to.wide_columns));
    dispatch_format(format, [&]<DType kFormat>() {
      if (wide) {
        launch_tiles<T, Team<T, true>, kFormat>(stream, q.granularity, a, tiles);
      } else {
        launch_tiles<T, Team<T, false>, kFormat>(stream, q.granularity, a, tiles);
      }
    });
  });
}

}  // namespace ottava::fp8::cuda
