#pragma once

#include <algorithm>

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_groups.h"
#include "core/cuda/row_part.cuh"
#include "core/cuda/row_ring.cuh"
#include "core/ops/norm/rms_norm.h"

// RMSNorm's backward pass, for rms_norm and whatever is fused with it. All give the same bits: the order of
// summation is the same, and multiply-adds are written out, so that the compiler does not choose what to
// contract.
namespace ottava::cuda {

template <class T>
struct NormBackwardArguments {
  const T *dy, *x, *weight, *dresidual;  // dresidual may be null
  const float* rstd;
  T* dx;           // may be dy or dresidual
  float* partial;  // [gridDim.x, cols]
  int64_t rows, packs;
  float inverse_cols;
};

/// What an element of dx is made of.
template <class P>
struct NormPacks {
  P dy, x, through;  ///< through: of dresidual, if there is one
};

/// How an instance goes through rows: kTeam threads share one, a warp or the block, and sum kPacks packs of
/// dweight each in registers. kAhead: these are all of a row, and rows are on the way into shared memory
/// before they are needed.
template <int kElements, int kThreads, int kTeamSize, int kMostPacks, bool kThroughToo>
struct NormBackwardTeam {
  static constexpr int kSize = kElements, kBlock = kThreads, kTeam = kTeamSize, kPacks = kMostPacks;
  static constexpr int kTeams = kBlock / kTeam;  ///< rows that a block handles at a time
  static constexpr int kColumns = kPacks * kTeam * kSize;
  static constexpr bool kThrough = kThroughToo;  ///< there is a dresidual
  static constexpr bool kAhead = kSize > 1 && kBlock <= 256;
  static constexpr int kOperands = kThrough ? 3 : 2;
  static constexpr int kRowBytes = 16 * kOperands * kPacks * kBlock;  ///< of all teams
  /// Rows in shared memory, one of which is worked on. Four of two blocks fit on an SM of 164 KiB, or else
  /// three on one of 227 KiB, or two where rows of more than 4096 bf16 elements have a dresidual too.
  static constexpr int kRows = 4 * kRowBytes <= 64 * 1024 ? 4 : 3 * kRowBytes <= 96 * 1024 ? 3 : 2;
  template <class T>
  using Ring = RowRing<T, kSize, kBlock, kTeam, kPacks, kOperands, kRows>;
  /// The sums of a block's teams are added where the rows were.
  static constexpr int kSumBytes = kTeams == 1 ? 0 : 4 * kColumns * kTeams;
  /// Of dynamic shared memory.
  template <class T>
  static constexpr size_t shared_bytes() {
    if constexpr (kAhead) {
      return std::max(Ring<T>::kBytes, kSumBytes);
    } else {
      return 0;
    }
  }
};

/// dx of one pack, and its share of dweight. Multiply-adds are written out, so that the compiler does not
/// choose what to contract.
template <bool kThrough, class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> norm_gradient(const NormPacks<Pack<T, kSize>>& packs,
                                                        const Pack<T, kSize>& weight, float rstd, float slope,
                                                        float* column_sums) {
  float dy[kSize], x[kSize], w[kSize], through[kSize], dx[kSize];
  unpack(packs.dy, dy), unpack(packs.x, x), unpack(weight, w);
  if constexpr (kThrough) unpack(packs.through, through);
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    column_sums[i] = fmaf(dy[i] * x[i], rstd, column_sums[i]);
    const float inner = fmaf(dy[i], w[i], -(x[i] * slope));
    dx[i] = kThrough ? fmaf(rstd, inner, through[i]) : rstd * inner;
  }
  return packed<T>(dx);
}

/// norm_backward() where the packs that have sums are all of a row.
template <class Team, class T, class Output>
__device__ __forceinline__ void norm_backward_ahead(const NormBackwardArguments<T>& a, Output output) {
  constexpr int kSize = Team::kSize, kBlock = Team::kBlock, kTeam = Team::kTeam, kPacks = Team::kPacks,
                kTeams = Team::kTeams;
  using P = Pack<T, kSize>;
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  const int64_t step = gridDim.x * int64_t{kTeams};
  const int64_t origin = blockIdx.x * int64_t{kTeams} + team;
  typename Team::template Ring<T> ring = [&] {
    if constexpr (Team::kThrough) {
      return typename Team::template Ring<T>({a.dy, a.x, a.dresidual}, a.rstd, origin, step, a.rows, a.packs);
    } else {
      return typename Team::template Ring<T>({a.dy, a.x}, a.rstd, origin, step, a.rows, a.packs);
    }
  }();
  P weight[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = member + k * kTeam;
    weight[k] = load_pack<T, kSize>(a.weight, c < a.packs ? c : 0);
  }
  float sums[kPacks][kSize] = {};
  unsigned count = 0;
  T* dx_row = a.dx + (origin * a.packs + member) * kSize;
  for (int64_t first = blockIdx.x * int64_t{kTeams}; first < a.rows; first += step, ++count) {
    const int64_t row = first + team;
    const RowPart part{row, row < a.rows ? a.packs : 0, member};
    ring.wait();
    const float rstd = ring.of_row();

    float dot = 0;
    NormPacks<P> kept[kPacks];
    for_packs<kTeam, kPacks, false>(part, [&](int k, int64_t) {
      kept[k].dy = ring.pack(0, k), kept[k].x = ring.pack(1, k);
      float dy[kSize], x[kSize], w[kSize];
      unpack(kept[k].dy, dy), unpack(kept[k].x, x), unpack(weight[k], w);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(dy[i] * w[i], x[i], dot);
    });
    const float slope = rstd * rstd * team_sum<kTeam>(dot, count) * a.inverse_cols;
    output.template take_row<kTeam, kPacks, false>(
        part,
        [&](int k, int64_t) {
          // Four packs of both would take 32 of 128 registers.
          if constexpr (kPacks > 2) kept[k].dy = ring.pack(0, k), kept[k].x = ring.pack(1, k);
          if constexpr (Team::kThrough) kept[k].through = ring.pack(2, k);
          const P dx = norm_gradient<Team::kThrough>(kept[k], weight[k], rstd, slope, sums[k]);
          store_pack(dx_row, k * kTeam, dx);
          return dx;
        },
        [](int64_t) { return P{}; });
    dx_row += step * a.packs * kSize;
    ring.advance();
  }
  output.finish();

  float* partial = a.partial + blockIdx.x * a.packs * kSize;
  if constexpr (kTeams == 1) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t c = member + k * kTeam;
      if (c < a.packs) store_pack(partial, c, packed<float>(sums[k]));
    }
  } else {
    cp_async_wait<0>();
    __syncthreads();
    constexpr int kColumns = Team::kColumns;
    float* all = dynamic_shared<float>();
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) all[team * kColumns + (member + k * kTeam) * kSize + i] = sums[k][i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < a.packs * kSize; c += kBlock) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kTeams; ++t) sum += all[t * kColumns + c];
      partial[c] = sum;
    }
  }
}

/// norm_backward() for longer rows, and of elements one by one: a row is read again, from the L1 cache, when
/// its sum is known.
template <class Team, class T, class Output>
__device__ __forceinline__ void norm_backward_again(const NormBackwardArguments<T>& a, Output output) {
  constexpr int kSize = Team::kSize, kTeam = Team::kTeam, kPacks = Team::kPacks, kKept = kPacks * kTeam;
  static_assert(Team::kTeams == 1);
  using P = Pack<T, kSize>;
  const int member = threadIdx.x;
  float* partial = a.partial + blockIdx.x * a.packs * kSize;

  float sums[kPacks][kSize] = {};
  for (int64_t c = member + kKept; c < a.packs; c += kTeam) {  // columns without a register
    for (int i = 0; i < kSize; ++i) partial[c * kSize + i] = 0;
  }
  unsigned count = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, ++count) {
    const int64_t start = row * a.packs;
    const float rstd = a.rstd[row];
    const RowPart part{row, a.packs, member};
    const auto load = [&](int64_t c) {
      NormPacks<P> packs{.dy = load_pack<T, kSize>(a.dy, start + c),
                         .x = load_pack<T, kSize>(a.x, start + c)};
      if constexpr (Team::kThrough) packs.through = load_pack<T, kSize>(a.dresidual, start + c);
      return packs;
    };

    float dot = 0;
    for_packs<kTeam, kPacks>(part, [&](int, int64_t c) {
      const NormPacks<P> packs = load(c);
      const P weight = load_pack<T, kSize>(a.weight, c);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(packs.dy[i] * weight[i], packs.x[i], dot);
    });
    const float slope = rstd * rstd * team_sum<kTeam>(dot, count) * a.inverse_cols;

    output.template take_row<kTeam, kPacks, true>(
        part,
        [&](int k, int64_t c) {
          const P dx =
              norm_gradient<Team::kThrough>(load(c), load_pack<T, kSize>(a.weight, c), rstd, slope,
                                            k < kPacks ? sums[k < kPacks ? k : 0] : partial + c * kSize);
          store_pack(a.dx, start + c, dx);
          return dx;
        },
        [&](int64_t c) { return load_pack<T, kSize>(a.dx, start + c); });
  }
  output.finish();

#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = member + k * kTeam;
    if (c < a.packs) store_pack(partial, c, packed<float>(sums[k]));
  }
}

/// Each team walks over rows and sums its share of dweight in registers; a block's teams are added in order.
/// `output` takes dx: every thread of the block calls its take_row<kTeam, kPacks, kMore>(part, make, again).
/// That calls make(k, c) once for each of the thread's packs, which stores pack c of dx, the thread's k-th,
/// and returns it; k is kPacks for all packs that have no registers, and again(c) returns such a pack once
/// more; without kMore there are none. At the end output.finish() is called.
template <class Team, class T, class Output>
__device__ __forceinline__ void norm_backward(const NormBackwardArguments<T>& a, Output output) {
  if constexpr (Team::kAhead) {
    norm_backward_ahead<Team>(a, output);
  } else {
    norm_backward_again<Team>(a, output);
  }
}

/// Calls body(NormBackwardTeam<...>{}) with what suits these rows: a warp per short row, else the block;
/// elements one by one if rows are not aligned.
template <class T, class Body>
void dispatch_norm_backward(const RmsNormBackward& b, Body&& body) {
  constexpr int kSize = kPackSize<T>, kPacks = 4;  // of a row, per thread, in registers, at most
  const auto choose = [&]<bool kThrough>() {
    const int64_t cols = b.x.cols();
    if (!rows_are_aligned(cols * int64_t{sizeof(T)}, b.x, b.dy, b.weight, b.dx, b.dresidual, b.workspace)) {
      return body(NormBackwardTeam<1, 256, 256, kPacks, kThrough>{});
    }
    if (cols <= kSize * 32) return body(NormBackwardTeam<kSize, 256, 32, 1, kThrough>{});
    if (cols <= kSize * 2 * 32) return body(NormBackwardTeam<kSize, 256, 32, 2, kThrough>{});
    if (cols <= kSize * kPacks * 32) return body(NormBackwardTeam<kSize, 256, 32, kPacks, kThrough>{});
    if (cols <= kSize * 2 * 256) return body(NormBackwardTeam<kSize, 256, 256, 2, kThrough>{});
    if (cols <= kSize * kPacks * 256) return body(NormBackwardTeam<kSize, 256, 256, kPacks, kThrough>{});
    return body(NormBackwardTeam<kSize, 512, 512, kPacks, kThrough>{});
  };
  if (b.dresidual.empty()) return choose.template operator()<false>();
  choose.template operator()<true>();
}

/// Launches kernel(arguments, target) and adds up the sums of dweight that its blocks leave.
template <class Team, class T, class Target>
void launch_norm_backward(std::string_view op, Stream& stream, const RmsNormBackward& b,
                          void (*kernel)(NormBackwardArguments<T>, Target), const Target& target) {
  const int64_t rows = b.x.rows(), cols = b.x.cols();
  const NormBackwardArguments<T> a{pointer<T>(b.dy),
                                   pointer<T>(b.x),
                                   pointer<T>(b.weight),
                                   pointer<T>(b.dresidual),
                                   pointer<float>(b.rstd),
                                   pointer<T>(b.dx),
                                   pointer<float>(b.workspace),
                                   rows,
                                   cols / Team::kSize,
                                   1.0f / static_cast<float>(cols)};
  const int64_t groups = std::min(ceil_div(rows, Team::kTeams), kRowGroups);
  if (groups == 0) return;
  launch(op, stream,
         {.grid = grid_of(groups), .block = Team::kBlock, .shared_bytes = Team::template shared_bytes<T>()},
         kernel, a, target);
  add_row_groups(op, stream, {a.partial, groups, cols, 0, cols}, pointer<float>(b.dweight));
}

}  // namespace ottava::cuda
