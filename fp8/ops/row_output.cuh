#pragma once

#include "fp8/codec.cuh"
#include "fp8/ops/row_output.h"

// FP8 output of kernels in which kTeam threads, a warp or the block, make a row together, in packs of 16
// bytes.
namespace ottava::fp8::cuda {

inline constexpr int kRowPacks = 8;  // of a row, per thread, in registers

/// RowOutput for a kernel.
struct RowTargets {
  uint8_t* out;
  float* inverse;
  unsigned long long* counters;
  uint32_t *non_finite, *largest;
  ScaleRounding rounding;
  int64_t rows, cols;
};
inline RowTargets row_targets(const RowOutput& o) {
  return {static_cast<uint8_t*>(o.out.bytes.data),
          static_cast<float*>(o.out.scale_inverse.data),
          static_cast<unsigned long long*>(o.counters.data),
          static_cast<uint32_t*>(o.non_finite.data),
          static_cast<uint32_t*>(o.largest.data),
          o.rounding,
          o.out.bytes.rows(),
          o.out.bytes.cols()};
}

/// Which row and which of its packs a thread has.
struct RowPart {
  int64_t row, packs;  ///< packs of this row: none past the last row
  int member;          ///< has packs member, member + kTeam, ...
};

/// What is quantized of a value that is stored as T.
template <class T, int kSize>
__device__ __forceinline__ float quantized_value(const Pack<T, kSize>& pack, int i) {
  return sizeof(T) == 2 ? pack[i] : to_float(__float2bfloat16_rn(pack[i]));
}
template <class T, int kSize>
__device__ __forceinline__ uint32_t largest_bits(const Pack<T, kSize>& pack) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) largest = max(largest, abs_bits(quantized_value(pack, i)));
  return largest;
}

/// Codes of a pack of the row.
template <DType kFormat, class T, int kSize>
__device__ __forceinline__ void write_codes(const RowTargets& to, int64_t row, int64_t c,
                                            const Pack<T, kSize>& pack, float scale, Losses& losses) {
  Pack<uint16_t, kSize / 2> codes;
#pragma unroll
  for (int i = 0; i < kSize; i += 2) {
    codes.values[i / 2] = static_cast<uint16_t>(encode_pair<kFormat>(
        {quantized_value(pack, i), quantized_value(pack, i + 1)}, {scale, scale}, to.counters, losses));
  }
  store_pack(reinterpret_cast<uint16_t*>(to.out + row * to.cols), c, codes);
}

/// The row in FP8. make(k, c) gives its pack c, which is the thread's k-th; for k == kRowPacks, one of the
/// later ones, which for scales per row are made twice. Every thread of the block calls it.
template <DType kFormat, Granularity kGranularity, int kTeam, class T, int kSize, class Make>
__device__ __forceinline__ void write_row(const RowTargets& to, const RowPart& part, Make&& make) {
  using P = Pack<T, kSize>;
  if (blockIdx.x == 0 && threadIdx.x == 0 && to.counters) {
    atomicAdd(to.counters, static_cast<unsigned long long>(to.rows * to.cols));
  }
  Losses losses;
  const int64_t first_later = int64_t{kRowPacks} * kTeam;
  if constexpr (kGranularity == Granularity::row) {
    P kept[kRowPacks];
    uint32_t amax = 0;
#pragma unroll
    for (int k = 0; k < kRowPacks; ++k) {
      const int64_t c = part.member + k * kTeam;
      if (c >= part.packs) continue;
      kept[k] = make(k, c);
      amax = max(amax, largest_bits(kept[k]));
    }
    for (int64_t c = part.member + first_later; c < part.packs; c += kTeam)
      amax = max(amax, largest_bits(make(kRowPacks, c)));
    amax = team_max<kTeam>(amax);
    raise_amax(to.largest, amax);
    const bool leads = part.member == 0 && part.packs > 0;
    const Scale scale = scale_of_group<kFormat>(amax, to.rounding, leads ? to.non_finite : nullptr);
    if (leads) to.inverse[part.row] = scale.inverse;
#pragma unroll
    for (int k = 0; k < kRowPacks; ++k) {
      const int64_t c = part.member + k * kTeam;
      if (c < part.packs) write_codes<kFormat>(to, part.row, c, kept[k], scale.scale, losses);
    }
    for (int64_t c = part.member + first_later; c < part.packs; c += kTeam) {
      write_codes<kFormat>(to, part.row, c, make(kRowPacks, c), scale.scale, losses);
    }
  } else {
    constexpr int kLanes = 128 / kSize;  // that share a group
    uint32_t largest = 0;
    auto write = [&](int k, int64_t c) {
      const bool exists = c < part.packs;
      P pack{};
      if (exists) pack = make(k, c);
      uint32_t amax = largest_bits(pack);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2)
        amax = max(amax, __shfl_xor_sync(kAllLanes, amax, offset));
      largest = max(largest, amax);
      const bool leads = exists && part.member % kLanes == 0;
      const Scale scale = scale_of_group<kFormat>(amax, to.rounding, leads ? to.non_finite : nullptr);
      if (leads) to.inverse[c / kLanes * to.rows + part.row] = scale.inverse;
      if (exists) write_codes<kFormat>(to, part.row, c, pack, scale.scale, losses);
    };
    // The same number of turns for all of a team.
#pragma unroll
    for (int k = 0; k < kRowPacks; ++k) {
      if (int64_t{k} * kTeam < part.packs) write(k, part.member + k * kTeam);
    }
    for (int64_t c = first_later; c < part.packs; c += kTeam) write(kRowPacks, c + part.member);
    raise_amax(to.largest, largest);
  }
  add_losses(to.counters, losses);
}

/// Calls body.operator()<format, granularity>().
template <class Body>
void dispatch_row_output(const RowOutput& o, Body&& body) {
  dispatch_format(o.out.bytes.dtype, [&]<DType kFormat>() {
    if (o.granularity == Granularity::row) {
      body.template operator()<kFormat, Granularity::row>();
    } else {
      body.template operator()<kFormat, Granularity::block_1x128>();
    }
  });
}

/// Throws ShapeError unless all addresses are aligned to 16 bytes.
template <class... Tensors>
void check_aligned(std::string_view op, const Tensors&... tensors) {
  if (rows_are_aligned(16, tensors...)) return;
  fail<ShapeError>(op, "an address is not aligned to 16 bytes, which this operation needs on a GPU");
}

}  // namespace ottava::fp8::cuda
