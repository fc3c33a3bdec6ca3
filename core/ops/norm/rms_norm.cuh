#pragma once

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_part.cuh"
#include "core/ops/norm/rms_norm.h"

// RMSNorm of one row, for rms_norm and whatever is fused with it. The order of summation is the same, so all
// give the same bits.
namespace ottava::cuda {

inline constexpr int kNormBlock = 256, kNormPacks = 8;  // threads; packs of a row, per thread, in registers
inline constexpr int kFewNormPacks = 2;  // for rows that need no more: half the registers, twice the blocks
/// Calls body.operator()<kTeam, kPacks>() with the number of threads that share a row, a warp for short rows,
/// else the whole block, and of the packs that each of them keeps.
template <class T, class Body>
void dispatch_norm_forward(int64_t cols, Body&& body) {
  constexpr int64_t kSize = kPackSize<T>;
  if (cols <= kSize * kNormPacks * 32) return body.template operator()<32, kNormPacks>();
  if (cols <= kSize * kNormBlock * kFewNormPacks)
    return body.template operator()<kNormBlock, kFewNormPacks>();
  body.template operator()<kNormBlock, kNormPacks>();
}

template <class T>
struct NormArguments {
  const T *x, *residual, *weight;  // residual null: x is normalised and sum not written
  T *sum, *y;                      // sum may be x or residual
  float* rstd;
  uint32_t* amax;
  int64_t rows, cols;
  float inverse_cols, eps;
};
template <class T>
NormArguments<T> norm_arguments(const RmsNormForward& f) {
  const int64_t rows = f.x.rows(), cols = f.x.cols();
  return {pointer<T>(f.x),
          pointer<T>(f.residual),
          pointer<T>(f.weight),
          pointer<T>(f.sum),
          pointer<T>(f.y),
          pointer<float>(f.rstd),
          pointer<uint32_t>(f.amax),
          rows,
          cols,
          1.0f / static_cast<float>(cols),
          f.eps};
}

/// One team's row between the two passes. `kept` holds a thread's packs member, member + kTeam, ...; what
/// does not fit (rows past 16384 bf16 elements) is read again, from the L2 cache.
template <class T, int kSize, int kTeam, int kPacks>
struct NormRow : RowPart {
  int64_t start;  ///< of the row, in packs
  const T* h;     ///< all rows
  float rstd;
  Pack<T, kSize> kept[kPacks];

  __device__ __forceinline__ Pack<T, kSize> pack(int k, int64_t c) const {
    return k < kPacks ? kept[k] : load_pack<T, kSize>(h, start + c);
  }
};

/// Reads the row, adds the residual and stores the sum, and stores rstd. Every thread of the block calls it.
/// kAtOnce: all of the row that is kept is under way before any of it is waited for, which takes registers.
template <class T, int kSize, int kTeam, int kPacks, bool kAtOnce>
__device__ __forceinline__ NormRow<T, kSize, kTeam, kPacks> read_norm_row(const NormArguments<T>& a) {
  using P = Pack<T, kSize>;
  NormRow<T, kSize, kTeam, kPacks> r;
  r.row = blockIdx.x * int64_t{kNormBlock / kTeam} + threadIdx.x / kTeam;
  r.member = static_cast<int>(threadIdx.x % kTeam);
  const bool active = r.row < a.rows;
  const int64_t packs = a.cols / kSize;
  r.packs = active ? packs : 0;
  r.start = r.row * packs;
  r.h = a.residual ? a.sum : a.x;

  if constexpr (kAtOnce) {
    // By a branch between two loads the second would wait for the first. So a thread without so many packs
    // reads some of weight, which nobody writes meanwhile.
    const auto read = [&](const T* from, P* to) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int64_t c = r.member + k * kTeam;
        to[k] = load_pack<T, kSize>(c < r.packs ? from + (r.start + c) * kSize : a.weight, 0);
      }
    };
    if (a.residual) {
      P residuals[kPacks];
      read(a.residual, residuals);
      read(a.x, r.kept);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) r.kept[k].set(i, r.kept[k][i] + residuals[k][i]);
      }
    } else {
      read(a.x, r.kept);
    }
  }
  float squares = 0;
  for_packs<kTeam, kPacks>(r, [&](int k, int64_t c) {
    P h;
    if (kAtOnce && k < kPacks) {
      h = r.kept[k];
    } else {
      h = load_pack<T, kSize>(a.x, r.start + c);
      if (a.residual) {
        const P residual = load_pack<T, kSize>(a.residual, r.start + c);
#pragma unroll
        for (int i = 0; i < kSize; ++i) h.set(i, h[i] + residual[i]);
      }
    }
    if (a.residual) store_pack(a.sum, r.start + c, h);
#pragma unroll
    for (int i = 0; i < kSize; ++i) squares += h[i] * h[i];
    if (k < kPacks) r.kept[k] = h;
  });

  r.rstd = 1.0f / sqrtf(team_sum<kTeam>(squares) * a.inverse_cols + a.eps);
  if (active && r.member == 0) a.rstd[r.row] = r.rstd;
  return r;
}

/// y of a pack, as stored.
template <class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> normalised(const Pack<T, kSize>& h, float rstd,
                                                     const Pack<T, kSize>& weight) {
  Pack<T, kSize> y;
#pragma unroll
  for (int i = 0; i < kSize; ++i) y.set(i, h[i] * rstd * weight[i]);
  return y;
}

}  // namespace ottava::cuda
