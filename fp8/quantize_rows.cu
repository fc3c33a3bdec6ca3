#include "core/cuda/row_part.cuh"
#include "core/float8/codec.cuh"
#include "fp8/quantize_cuda.h"
#include "fp8/quantize_kernels.h"

// Ceiling: memory bandwidth: 2 bytes read and one written per bf16 element. Rows past 64 KiB are read again,
// from the L2 cache.
namespace ottava::fp8::cuda {
namespace {

// The fewer packs a thread keeps, the more blocks are on an SM and have loads under way.
using Warp = RowTeam<32, 256, 8, 4>;
using SmallBlock = RowTeam<128, 128, 4, 9>;
using ThirdBlock = RowTeam<256, 256, 3, 5>;
using Block = RowTeam<256, 256, 4, 5>;
using LargeBlock = RowTeam<256, 256, 8, 4>;
using HugeBlock = RowTeam<512, 512, 8, 2>;
/// The longest row that a team keeps whole, in packs.
template <class Team>
inline constexpr int64_t kLongest = int64_t{Team::kTeam} * Team::kKept;

template <class T>
struct Arguments {
  const T* x;
  int64_t rows, cols, stride;  // elements from a row of x to the next
  QuantizeTargets to;
};

/// As many neighbouring values as are 16 bytes in T, as bf16, two to a word. A warp reads 512 contiguous
/// bytes and stores the codes of a pack of each lane.
template <class T>
struct Values {
  static constexpr int kSize = kPackSize<T>, kPairs = kSize / 2;
  uint32_t pairs[kPairs];
};
using Words = Pack<uint32_t, 4>;  // of a pack in memory
template <class T>
__device__ __forceinline__ Values<T> values_of(const Words& words) {
  Values<T> v;
#pragma unroll
  for (int i = 0; i < Values<T>::kPairs; ++i) {
    v.pairs[i] = sizeof(T) == 2 ? words.values[i]
                                : pack_bf16(__uint_as_float(words.values[2 * i % 4]),
                                            __uint_as_float(words.values[(2 * i + 1) % 4]));
  }
  return v;
}
/// Pack c of a row, and zeros past its end.
template <bool kWide, class T>
__device__ __forceinline__ Words load_of_row(const T* row, int64_t c, int64_t cols) {
  constexpr int kSize = kPackSize<T>;
  Words words{};
  if constexpr (kWide) {
    if (c * kSize < cols) words = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(row), c);
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float x = c * kSize + i < cols ? to_float(row[c * kSize + i]) : 0;
      if constexpr (sizeof(T) == 2) {
        words.values[i / 2] |= __float_as_uint(x) >> 16 << 16 * (i % 2);
      } else {
        words.values[i] = __float_as_uint(x);
      }
    }
  }
  return words;
}

/// kWide: rows of x and of the codes can be moved 16 bytes at a time.
template <class T, DType kFormat, class Team, bool kWide>
__global__ void __launch_bounds__(Team::kBlock, Team::kBlocks) row_kernel(Arguments<T> a) {
  constexpr int kTeam = Team::kTeam, kBlock = Team::kBlock, kKept = Team::kKept;
  using Held = Values<T>;
  constexpr int kSize = Held::kSize;
  const QuantizeTargets& to = a.to;
  const int64_t row = blockIdx.x * int64_t{kBlock / kTeam} + threadIdx.x / kTeam;
  const bool active = row < a.rows;
  const int member = static_cast<int>(threadIdx.x % kTeam);
  const int64_t cols = active ? a.cols : 0;
  const T* x = a.x + row * a.stride;
  uint8_t* out = to.out + row * a.cols;
  if (blockIdx.x == 0 && threadIdx.x == 0 && to.counters) {
    atomicAdd(to.counters, static_cast<unsigned long long>(a.rows * a.cols));
  }

  // All that is kept is under way before any of it is waited for.
  Words loaded[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) loaded[k] = load_of_row<kWide>(x, member + k * kTeam, cols);
  uint32_t largest = 0;
  Held kept[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    kept[k] = values_of<T>(loaded[k]);
#pragma unroll
    for (int i = 0; i < Held::kPairs; ++i) largest = max_of_pairs(largest, kept[k].pairs[i]);
  }
  auto read_again = [&](auto&& body) {
    for (int64_t c = member + kKept * kTeam; c * kSize < cols; c += kTeam) {
      body(c, values_of<T>(load_of_row<kWide>(x, c, cols)));
    }
  };
  read_again([&](int64_t, const Held& v) {
#pragma unroll
    for (int i = 0; i < Held::kPairs; ++i) largest = max_of_pairs(largest, v.pairs[i]);
  });
  const uint32_t amax = team_max<kTeam>(max(bits_of_low(largest), bits_of_high(largest)));

  const Scale scale =
      scale_of_group<kFormat>(amax, to.rounding, member == 0 && active ? to.non_finite : nullptr);
  if (active && member == 0) static_cast<float*>(to.out_inverse)[row] = scale.inverse;
  Losses losses{};
  auto write = [&](int64_t c, const Held& v) {
    Pack<uint32_t, kSize / 4> codes;
#pragma unroll
    for (int w = 0; w < kSize / 4; ++w) {
      const uint32_t low = v.pairs[2 * w], high = v.pairs[2 * w + 1];
      codes.values[w] = encode_four<kFormat>(low, high, scale.scale);
      if (to.counters) count_losses<kFormat>(codes.values[w], low, high, scale.scale, losses);
    }
    if constexpr (kWide) {
      store_pack(reinterpret_cast<uint32_t*>(out), c, codes);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (c * kSize + i < cols) out[c * kSize + i] = static_cast<uint8_t>(codes.values[i / 4] >> i % 4 * 8);
      }
    }
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t c = member + k * kTeam;
    if (c * kSize < cols) write(c, kept[k]);
  }
  read_again(write);
  add_losses(to.counters, losses);
  raise_amax(to.largest, amax);
}

}  // namespace

void quantize_rows(Stream& stream, const Quantize& q, const QuantizeTargets& to) {
  const MatrixRows x = x_of(q);
  dispatch_element(x.dtype, "quantize", [&]<class T>() {
    const Arguments<T> a{pointer<T>(x), x.rows, x.cols, x.stride, to};
    dispatch_format(q.out.codes.dtype, [&]<DType kFormat>() {
      const auto start = [&]<class Team>(Team, void (*kernel)(Arguments<T>)) {
        launch("quantize", stream, Team::shape(a.rows), kernel, a);
      };
      const auto wide = [&]<class Team>(Team team) { start(team, row_kernel<T, kFormat, Team, true>); };
      using Any = RowTeam<256, 256, 4, 2>;
      if (!to.wide_rows) return start(Any{}, row_kernel<T, kFormat, Any, false>);
      const int64_t packs = ceil_div(a.cols, kPackSize<T>);
      if (packs <= kLongest<Warp>) return wide(Warp{});
      if (packs <= kLongest<SmallBlock>) return wide(SmallBlock{});
      if (packs <= kLongest<ThirdBlock>) return wide(ThirdBlock{});
      if (packs <= kLongest<Block>) return wide(Block{});
      if (packs <= kLongest<LargeBlock>) return wide(LargeBlock{});
      wide(HugeBlock{});
    });
  });
}

}  // namespace ottava::fp8::cuda
