#pragma once

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_part.cuh"
#include "core/ops/norm/rms_norm.h"

// RMSNorm of one row, for rms_norm and whatever is fused with it. The order of summation is the same, so all
// give the same bits.
namespace ottava::cuda {

inline constexpr int kNormBlock = 256, kNormPacks = 8;  // threads; packs of a row, per thread, in registers
/// How an instance goes through a row: kTeam threads share it, a warp or the block, kPacks packs of each stay
/// in registers, and kWhole says that this is all of the row.
template <int kTeamSize, int kMostPacks, bool kAll = true>
struct NormTeam {
  static constexpr int kTeam = kTeamSize, kPacks = kMostPacks;
  static constexpr bool kWhole = kAll;
};
/// Calls body(NormTeam<...>{}) with what suits these rows, and no more registers than they need. Which rows
/// are a warp's is part of the order of summation.
template <class T, class Body>
void dispatch_norm_forward(int64_t cols, Body&& body) {
  const int64_t packs = cols / kPackSize<T>;
  if (packs <= 32) return body(NormTeam<32, 1>{});
  if (packs <= 2 * 32) return body(NormTeam<32, 2>{});
  if (packs <= 4 * 32) return body(NormTeam<32, 4>{});
  if (packs <= kNormPacks * 32) return body(NormTeam<32, kNormPacks>{});
  if (packs <= 2 * kNormBlock) return body(NormTeam<kNormBlock, 2>{});
  if (packs <= 4 * kNormBlock) return body(NormTeam<kNormBlock, 4>{});
  body(NormTeam<kNormBlock, kNormPacks, false>{});
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
template <class T, int kSize, class Team>
struct NormRow : RowPart {
  int64_t start;         ///< of the row, in packs
  const T *h, *weights;  ///< h: of all rows
  float rstd;
  Pack<T, kSize> kept[Team::kPacks], weight[Team::kPacks];
  /// Weight is under way with the row, and not only when its sum is known.
  static constexpr bool kKeepsWeight = Team::kWhole && Team::kPacks <= 2;

  /// y of pack c, the thread's k-th, as stored.
  __device__ __forceinline__ Pack<T, kSize> normalised(int k, int64_t c) const {
    float x[kSize], w[kSize], y[kSize];
    unpack(Team::kWhole || k < Team::kPacks ? kept[k] : load_pack<T, kSize>(h, start + c), x);
    if constexpr (kKeepsWeight) {
      unpack(weight[k], w);
    } else {
      unpack(load_pack<T, kSize>(weights, c), w);
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) y[i] = x[i] * rstd * w[i];
    return packed<T>(y);
  }
};

/// Reads the row, adds the residual and stores the sum, and stores rstd. Every thread of the block calls it.
/// All of a row that is kept whole is under way before any of it is waited for.
template <class T, int kSize, class Team, bool kResidual>
__device__ __forceinline__ NormRow<T, kSize, Team> read_norm_row(const NormArguments<T>& a) {
  using P = Pack<T, kSize>;
  constexpr int kTeam = Team::kTeam, kPacks = Team::kPacks;
  NormRow<T, kSize, Team> r;
  r.row = blockIdx.x * int64_t{kNormBlock / kTeam} + threadIdx.x / kTeam;
  r.member = static_cast<int>(threadIdx.x % kTeam);
  const bool active = r.row < a.rows;
  const int64_t packs = a.cols / kSize;
  r.packs = active ? packs : 0;
  r.start = r.row * packs;
  r.h = kResidual ? a.sum : a.x;
  r.weights = a.weight;

  P residuals[Team::kWhole && kResidual ? kPacks : 1];
  if constexpr (Team::kWhole) {
    // By a branch between two loads the second would wait for the first. So a thread without so many packs
    // reads some of weight, which nothing writes meanwhile.
    const auto read = [&](const T* all, int64_t first, P* to) {
      const T* from = all + (first + r.member) * kSize;
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const bool exists = r.member + k * kTeam < r.packs;
        to[k] = load_pack<T, kSize>(exists ? from + k * kTeam * kSize : a.weight, 0);
      }
    };
    if constexpr (kResidual) read(a.residual, r.start, residuals);
    read(a.x, r.start, r.kept);
    if constexpr (r.kKeepsWeight) read(a.weight, 0, r.weight);
  }
  float squares = 0;
  for_packs<kTeam, kPacks, !Team::kWhole>(r, [&](int k, int64_t c) {
    P pack;
    float h[kSize];
    if constexpr (Team::kWhole) {
      pack = r.kept[k];
    } else {
      pack = load_pack<T, kSize>(a.x, r.start + c);
    }
    unpack(pack, h);
    if constexpr (kResidual) {
      float residual[kSize];
      if constexpr (Team::kWhole) {
        unpack(residuals[k], residual);
      } else {
        unpack(load_pack<T, kSize>(a.residual, r.start + c), residual);
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) h[i] += residual[i];
      pack = packed<T>(h);
      store_pack(a.sum, r.start + c, pack);
      unpack(pack, h);
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) squares = fmaf(h[i], h[i], squares);
    if (Team::kWhole || k < kPacks) r.kept[k] = pack;
  });

  r.rstd = 1.0f / sqrtf(fmaf(team_sum<kTeam>(squares), a.inverse_cols, a.eps));
  if (active && r.member == 0) a.rstd[r.row] = r.rstd;
  return r;
}

}  // namespace ottava::cuda
