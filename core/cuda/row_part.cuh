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

}  // namespace ottava::cuda
