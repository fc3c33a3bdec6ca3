#pragma once

#include "core/cuda/gpu.h"

namespace ottava::cuda {

/// The row, and the packs in it, that a thread of a team has.
struct RowPart {
  int64_t row, packs;  ///< packs of this row: none past the last row
  int member;          ///< has packs member, member + the team's size, ...
};

/// Calls body(k, c) for each pack c of the thread. It is the thread's k-th pack; k is kPacks for all that
/// have no registers. Without kMore there are none of these.
template <int kTeam, int kPacks, bool kMore = true, class Body>
__device__ __forceinline__ void for_packs(const RowPart& part, Body&& body) {
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = part.member + k * kTeam;
    if (c < part.packs) body(k, c);
  }
  if constexpr (kMore) {
    for (int64_t c = part.member + kPacks * kTeam; c < part.packs; c += kTeam) body(kPacks, c);
  }
}

/// How many threads share a row, and how many make a block; how many packs of the row, or pairs of packs of
/// its halves, a thread keeps in registers, and how many blocks share an SM at least.
template <int kThreadsOfRow, int kThreadsOfBlock, int kKeptPacks, int kBlocksOnSm>
struct RowTeam {
  static constexpr int kTeam = kThreadsOfRow, kBlock = kThreadsOfBlock, kKept = kKeptPacks,
                       kBlocks = kBlocksOnSm;
  /// The launch for this many rows.
  static LaunchShape shape(int64_t rows) {
    return {.grid = grid_of(ceil_div(rows, kBlock / kTeam)), .block = kBlock};
  }
};

/// A block of kBlock threads, a power of two, as teams of 2^shift, one for each row: rows with fewer items
/// than the block has threads would leave the others idle. kWhole: the block is one team.
template <int kBlock, bool kIsWhole>
struct Teams {
  static constexpr bool kWhole = kIsWhole;
  int shift = 0;

  __host__ __device__ int size() const { return kWhole ? kBlock : 1 << shift; }
  LaunchShape shape(int64_t rows) const {
    return {.grid = grid_of(ceil_div(rows, kBlock / size())), .block = kBlock};
  }
  __device__ __forceinline__ int64_t row() const {
    if constexpr (kWhole) return blockIdx.x;
    return blockIdx.x * int64_t{kBlock >> shift} + (threadIdx.x >> shift);
  }
  __device__ __forceinline__ int member() const {
    return static_cast<int>(kWhole ? threadIdx.x : threadIdx.x & (size() - 1u));
  }
};
/// Calls f(teams) with the smallest that have a thread for each of a row's items, or with whole blocks.
template <int kBlock, class F>
void dispatch_teams(int64_t items, F&& f) {
  Teams<kBlock, false> teams;
  while (teams.size() < items && teams.size() < kBlock) ++teams.shift;
  if (teams.size() == kBlock) return f(Teams<kBlock, true>{});
  f(teams);
}

}  // namespace ottava::cuda
