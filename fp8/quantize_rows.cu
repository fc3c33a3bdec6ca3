#include <type_traits>

#include "core/float8/codec.cuh"
#include "fp8/quantize_cuda.h"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth: 2 bytes read and one written per bf16 element. Rows past 16384 elements are read
// again, from the L2 cache.
namespace ottava::fp8::cuda {
namespace {

/// How many threads share a row, and how many make a block; how many pieces of sixteen elements of the row a
/// thread keeps in registers. The fewer it keeps, the more blocks are on an SM and have loads under way.
template <int kTeam_, int kBlock_, int kKept_>
struct Team {
  static constexpr int kTeam = kTeam_, kBlock = kBlock_, kKept = kKept_;
};
/// The longest row that a team keeps whole.
template <class Team>
inline constexpr int64_t kLongest = int64_t{Team::kTeam} * Team::kKept * 16;
using Warp = Team<32, 256, 4>;
using SmallBlock = Team<128, 128, 2>;
using Block = Team<256, 256, 2>;
using LargeBlock = Team<256, 256, 4>;

template <class T>
struct Arguments {
  const T* x;
  int64_t rows, cols, stride;  // elements from a row of x to the next
  QuantizeTargets to;
};

template <class T, DType kFormat, class Team>
__global__ void __launch_bounds__(Team::kBlock) row_kernel(Arguments<T> a) {
  constexpr int kTeam = Team::kTeam, kBlock = Team::kBlock, kKept = Team::kKept;
  const QuantizeTargets& to = a.to;
  const int64_t row = blockIdx.x * int64_t{kBlock / kTeam} + threadIdx.x / kTeam;
  const bool active = row < a.rows;
  const int member = static_cast<int>(threadIdx.x % kTeam);
  const int64_t pieces = active ? ceil_div(a.cols, 16) : 0;
  if (blockIdx.x == 0 && threadIdx.x == 0 && to.counters) {
    atomicAdd(to.counters, static_cast<unsigned long long>(a.rows * a.cols));
  }
  auto load = [&](int64_t c, bool wide) {  // zeros past the row
    return load_sixteen(a.x + row * a.stride + c * 16, c < pieces ? a.cols - c * 16 : 0, wide);
  };

  // All that is kept is under way before any of it is waited for: the question how wide loads are is asked
  // once, not between two of them.
  Sixteen kept[kKept];
  auto keep = [&](auto wide) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) kept[k] = load(member + k * kTeam, wide);
  };
  to.wide_rows ? keep(std::true_type{}) : keep(std::false_type{});
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) amax = max(amax, largest_bits(kept[k]));
  for (int64_t c = member + kKept * kTeam; c < pieces; c += kTeam) {
    amax = max(amax, largest_bits(load(c, to.wide_rows)));
  }
  amax = team_max<kTeam>(amax);
  raise_amax(to.largest, amax);

  const Scale scale =
      scale_of_group<kFormat>(amax, to.rounding, member == 0 && active ? to.non_finite : nullptr);
  if (active && member == 0) static_cast<float*>(to.out_inverse)[row] = scale.inverse;
  Losses losses{};
  auto write = [&](int64_t c, const Sixteen& x) {
    const Codes codes = encode<kFormat>(
        x, [&](int) { return scale.scale; }, to.counters != nullptr, losses);
    store_codes(to.out + row * a.cols + c * 16, codes, a.cols - c * 16, to.wide_rows);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t c = member + k * kTeam;
    if (c < pieces) write(c, kept[k]);
  }
  for (int64_t c = member + kKept * kTeam; c < pieces; c += kTeam) write(c, load(c, to.wide_rows));
  add_losses(to.counters, losses);
}

}  // namespace

void quantize_rows(Stream& stream, const Quantize& q, const QuantizeTargets& to) {
  const MatrixRows x = x_of(q);
  dispatch_element(x.dtype, "quantize", [&]<class T>() {
    const Arguments<T> a{pointer<T>(x), x.rows, x.cols, x.stride, to};
    dispatch_format(q.out.codes.dtype, [&]<DType kFormat>() {
      const auto start = [&]<class Team>(Team) {
        launch("quantize", stream,
               {.grid = grid_of(ceil_div(a.rows, Team::kBlock / Team::kTeam)), .block = Team::kBlock},
               row_kernel<T, kFormat, Team>, a);
      };
      if (a.cols <= kLongest<Warp>) return start(Warp{});
      if (a.cols <= kLongest<SmallBlock>) return start(SmallBlock{});
      if (a.cols <= kLongest<Block>) return start(Block{});
      start(LargeBlock{});
    });
  });
}

}  // namespace ottava::fp8::cuda
