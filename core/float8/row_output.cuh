#pragma once

#include "core/cuda/row_part.cuh"
#include "core/float8/codec.cuh"
#include "core/float8/row_output.h"

// FP8 output of kernels in which a team of kTeam threads (a warp or the block) makes a row together, in packs
// of 16 bytes.
namespace ottava::fp8::cuda {

/// RowOutput for a kernel.
struct RowTargets {
  uint8_t* out;
  float* inverse;
  unsigned long long* counters;
  uint32_t *non_finite, *largest;
  const uint32_t* amax;
  ScaleRounding rounding;
  int64_t rows, cols;
};
inline RowTargets row_targets(const RowOutput& o) {
  return {pointer<uint8_t>(o.out.codes),
          pointer<float>(o.out.scale_inverse),
          pointer<unsigned long long>(o.counters),
          pointer<uint32_t>(o.non_finite),
          pointer<uint32_t>(o.largest),
          pointer<uint32_t>(o.amax),
          o.rounding,
          o.out.codes.rows(),
          o.out.codes.cols()};
}

/// What an operation makes at a time where the halves of a row belong together: pack c of the first half, and
/// the pack of the second half that lies part.packs further on.
template <class P>
struct TwoPacks {
  P first, second;
};
/// Calls body(pack, j) for each pack that was made; j is 1 for the second of two.
template <class T, int kSize, class Body>
__device__ __forceinline__ void for_each_pack(const Pack<T, kSize>& pack, Body&& body) {
  body(pack, 0);
}
template <class P, class Body>
__device__ __forceinline__ void for_each_pack(const TwoPacks<P>& packs, Body&& body) {
  body(packs.first, 0);
  body(packs.second, 1);
}

/// Elements i and i + 1 as they lie in memory.
template <int kSize>
__device__ __forceinline__ uint32_t bits_of_pair(const Pack<__nv_bfloat16, kSize>& pack, int i) {
  return reinterpret_cast<const uint32_t*>(pack.values)[i / 2];
}

/// Writes the codes of a pack: eight bytes for a pack of bf16, so that a warp fills 256 bytes, whole lines.
/// Sixteen bytes would need two neighbouring packs in one thread, but which packs a thread has decides the
/// order in which a norm adds up its row.
template <DType kFormat, int kSize>
__device__ __forceinline__ void write_codes(const RowTargets& to, int64_t row, int64_t c,
                                            const Pack<__nv_bfloat16, kSize>& pack, float scale,
                                            Losses& losses) {
  static_assert(kSize % 4 == 0);
  Pack<uint32_t, kSize / 4> codes;
  float x[kSize];
  unpack(pack, x);
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    const auto pair = [&](int j) { return encode_pair<kFormat>({x[j], x[j + 1]}, scale); };
    codes.values[i / 4] = pair(i) | pair(i + 2) << 16;
  }
  store_pack(reinterpret_cast<uint32_t*>(to.out + row * to.cols), c, codes);
  if (!to.counters) return;
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    count_losses<kFormat>(codes.values[i / 4], bits_of_pair(pack, i), bits_of_pair(pack, i + 2), scale,
                          losses);
  }
}

/// What a thread has seen of its rows.
struct RowsSeen {
  Losses losses{};
  uint32_t largest = 0;
  unsigned rows = 0;  ///< that the block has measured
};
/// Reports what the block's threads have seen. Every thread of the block calls it, once.
__device__ __forceinline__ void report(const RowTargets& to, const RowsSeen& seen) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && to.counters) {
    atomicAdd(to.counters, static_cast<unsigned long long>(to.rows * to.cols));
  }
  raise_amax(to.largest, seen.largest);
  add_losses(to.counters, seen.losses);
}

/// Writes a row with a scale of its own: it is measured while it is made, then written.
template <DType kFormat, int kTeam, int kPacks, bool kMore, class Make, class Again>
__device__ __forceinline__ void write_measured_row(const RowTargets& to, const RowPart& part, RowsSeen& seen,
                                                   Make&& make, Again&& again) {
  using Made = decltype(make(kPacks, int64_t{}));
  Made kept[kPacks];
  uint32_t amax = 0;
  for_packs<kTeam, kPacks, kMore>(part, [&](int k, int64_t c) {
    const Made made = make(k, c);
    for_each_pack(made, [&](const auto& pack, int) { amax = max(amax, largest_bits(pack)); });
    if (k < kPacks) kept[k] = made;
  });
  amax = team_max<kTeam>(amax, seen.rows++);
  seen.largest = max(seen.largest, amax);
  const bool leads = part.member == 0 && part.packs > 0;
  const Scale scale = scale_of_group<kFormat>(amax, to.rounding, leads ? to.non_finite : nullptr);
  if (leads) to.inverse[part.row] = scale.inverse;
  for_packs<kTeam, kPacks, kMore>(part, [&](int k, int64_t c) {
    for_each_pack(!kMore || k < kPacks ? kept[k] : again(c), [&](const auto& pack, int j) {
      write_codes<kFormat>(to, part.row, c + j * part.packs, pack, scale.scale, seen.losses);
    });
  });
}

/// Writes a row whose groups of 128 have scales of their own. All packs of a thread are made before the first
/// is measured, so that one's shuffles and divisions do not wait for another's.
template <DType kFormat, int kTeam, int kPacks, class Make>
__device__ __forceinline__ void write_grouped_row(const RowTargets& to, const RowPart& part, RowsSeen& seen,
                                                  Make&& make) {
  using Made = decltype(make(kPacks, int64_t{}));
  constexpr int kLanes = static_cast<int>(128 * sizeof(uint16_t) / sizeof(Made));  // that share a group
  Made made[kPacks] = {};
  uint32_t amax[kPacks];
  for_packs<kTeam, kPacks, false>(part, [&](int k, int64_t c) { made[k] = make(k, c); });
#pragma unroll
  for (int k = 0; k < kPacks; ++k) amax[k] = largest_bits(made[k]);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) amax[k] = max(amax[k], __shfl_xor_sync(kAllLanes, amax[k], offset));
  }
  const bool leads = part.member % kLanes == 0;
  Scale scale[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    seen.largest = max(seen.largest, amax[k]);
    scale[k] = scale_of_group<kFormat>(amax[k], to.rounding, leads ? to.non_finite : nullptr);
  }
  for_packs<kTeam, kPacks, false>(part, [&](int k, int64_t c) {
    if (leads) to.inverse[c / kLanes * to.rows + part.row] = scale[k].inverse;
    write_codes<kFormat>(to, part.row, c, made[k], scale[k].scale, seen.losses);
  });
}

/// Writes a row pack by pack, with the tensor's scale or the scale of the pack's group of 128.
template <DType kFormat, bool kGroups, int kTeam, int kPacks, bool kMore, class Make>
__device__ __forceinline__ void write_row_by_packs(const RowTargets& to, const RowPart& part, RowsSeen& seen,
                                                   Make&& make) {
  using Made = decltype(make(kPacks, int64_t{}));
  const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
  Scale whole;
  if constexpr (!kGroups) {
    whole = scale_of_group<kFormat>(*to.amax, to.rounding, is_first ? to.non_finite : nullptr);
    if (is_first) *to.inverse = whole.inverse;
  }
  auto write = [&](int k, int64_t c) {
    const bool exists = c < part.packs;
    Made made{};
    if (exists) made = make(k, c);
    for_each_pack(made, [&]<class T, int kSize>(const Pack<T, kSize>& pack, int j) {
      const int64_t at = c + j * part.packs;
      uint32_t amax = largest_bits(pack);
      Scale scale = whole;
      if constexpr (kGroups) {
        constexpr int kLanes = 128 / kSize;  // that share a group
#pragma unroll
        for (int offset = kLanes / 2; offset > 0; offset /= 2)
          amax = max(amax, __shfl_xor_sync(kAllLanes, amax, offset));
        const bool leads = exists && part.member % kLanes == 0;
        scale = scale_of_group<kFormat>(amax, to.rounding, leads ? to.non_finite : nullptr);
        if (leads) to.inverse[at / kLanes * to.rows + part.row] = scale.inverse;
      }
      seen.largest = max(seen.largest, amax);
      if (exists) write_codes<kFormat>(to, part.row, at, pack, scale.scale, seen.losses);
    });
  };
  // The same number of turns for all of a team.
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (int64_t{k} * kTeam < part.packs) write(k, part.member + k * kTeam);
  }
  if constexpr (kMore) {
    for (int64_t c = int64_t{kPacks} * kTeam; c < part.packs; c += kTeam) write(kPacks, c + part.member);
  }
}

/// A row with one scale is measured before it is written, and as much of it as fits stays in registers.
template <Granularity kGranularity>
inline constexpr bool kMeasuresRow = kGranularity == Granularity::row;
/// How many neighbouring elements of a row share a scale of their own; 1 where a scale belongs to whole rows
/// or to the tensor.
template <Granularity kGranularity>
inline constexpr int64_t kGroup = kGranularity == Granularity::block_1x128 ? 128 : 1;

/// Writes a row in FP8. make(k, c) gives its pack c, which is the thread's k-th; for a row of two halves it
/// gives TwoPacks, and part.packs counts one half. k == kPacks stands for all later packs; with scales per
/// row, again(c) gives these once more. Without kMore there are none of these. Two halves with scales per
/// 1x128 must be multiples of 128. Every thread of the block calls it.
template <DType kFormat, Granularity kGranularity, int kTeam, int kPacks, bool kMore = true, class Make,
          class Again>
__device__ __forceinline__ void write_row(const RowTargets& to, const RowPart& part, RowsSeen& seen,
                                          Make&& make, Again&& again) {
  if constexpr (kMeasuresRow<kGranularity>) {
    write_measured_row<kFormat, kTeam, kPacks, kMore>(to, part, seen, make, again);
  } else if constexpr (kGroup<kGranularity> > 1 && !kMore) {
    write_grouped_row<kFormat, kTeam, kPacks>(to, part, seen, make);
  } else {
    write_row_by_packs<kFormat, (kGroup<kGranularity> > 1), kTeam, kPacks, kMore>(to, part, seen, make);
  }
}
/// The same for a team's only row, whose later packs are made twice; then reports.
template <DType kFormat, Granularity kGranularity, int kTeam, int kPacks, bool kMore = true, class Make>
__device__ __forceinline__ void write_row(const RowTargets& to, const RowPart& part, Make&& make) {
  RowsSeen seen;
  write_row<kFormat, kGranularity, kTeam, kPacks, kMore>(to, part, seen, make,
                                                         [&](int64_t c) { return make(kPacks, c); });
  report(to, seen);
}

/// Calls body.operator()<format, granularity>().
template <class Body>
void dispatch_row_output(const RowOutput& o, Body&& body) {
  switch (o.granularity) {
    case Granularity::tensor:
      return dispatch_format(o.out.codes.dtype, [&]<DType kFormat>() {
        body.template operator()<kFormat, Granularity::tensor>();
      });
    case Granularity::row:
      return body.template operator()<DType::e4m3, Granularity::row>();
    case Granularity::block_1x128:
      return body.template operator()<DType::e4m3, Granularity::block_1x128>();
    default:
      fail("fp8", "rows with scales per {} have no kernel in dispatch_row_output()", name_of(o.granularity));
  }
}

/// Throws ShapeError unless all addresses are aligned to 16 bytes.
template <class... Tensors>
void check_aligned(std::string_view op, const Tensors&... tensors) {
  if (rows_are_aligned(16, tensors...)) return;
  fail<ShapeError>(op, "an address is not aligned to 16 bytes, which this operation needs on a GPU");
}

}  // namespace ottava::fp8::cuda
