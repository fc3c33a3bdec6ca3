#pragma once

#include <algorithm>

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_groups.h"
#include "core/cuda/row_part.cuh"
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

/// Each team walks over rows and sums its share of dweight in registers; a block's teams are added in order.
/// `output` takes dx: every thread of the block calls its take_row<kTeam, kPacks>(part, make, again). That
/// calls make(k, c) once for each of the thread's packs, which stores pack c of dx, the thread's k-th, and
/// returns it; k is kPacks for all packs that have no registers, and again(c) returns such a pack once more.
/// At the end output.finish() is called.
template <int kSize, int kBlock, int kTeam, int kPacks, class T, class Output>
__device__ __forceinline__ void norm_backward(const NormBackwardArguments<T>& a, Output output) {
  using P = Pack<T, kSize>;
  constexpr int kTeams = kBlock / kTeam, kKept = kPacks * kTeam;
  // A thread of a large block has 128 registers, too few for its sums and its share of the row, so the row is
  // read again, from the L1 cache.
  constexpr bool kKeeps = kBlock <= 256;
  // All of a long row is under way before any of it is waited for: of bf16, 6 or 12 loads of 16 bytes in
  // place of 3 or 4, in 128 or 238 registers. Warps have rows of their own, and codes of theirs would spill.
  constexpr bool kAtOnce = kKeeps && kTeam == kBlock;
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  float* partial = a.partial + blockIdx.x * a.packs * kSize;

  // All that a row needs is under way before its sum is waited for.
  auto load = [&](int64_t start, int64_t c) {
    NormPacks<P> packs{.dy = load_pack<T, kSize>(a.dy, start + c), .x = load_pack<T, kSize>(a.x, start + c)};
    if (a.dresidual) packs.through = load_pack<T, kSize>(a.dresidual, start + c);
    return packs;
  };

  float sums[kPacks][kSize] = {};
  // Columns without a register: one team per block.
  for (int64_t c = member + kKept; c < a.packs; c += kTeam) {
    for (int i = 0; i < kSize; ++i) partial[c * kSize + i] = 0;
  }
  for (int64_t first = blockIdx.x * int64_t{kTeams}; first < a.rows; first += gridDim.x * int64_t{kTeams}) {
    const int64_t row = first + team;
    const bool active = row < a.rows;
    const int64_t packs = active ? a.packs : 0, start = row * a.packs;
    const float rstd = active ? a.rstd[row] : 0;
    const RowPart part{row, packs, member};

    float dot = 0;
    NormPacks<P> kept[kKeeps ? kPacks : 1];
    if constexpr (kAtOnce) {
      const auto each_kept = [&](auto&& body) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
          const int64_t c = member + k * kTeam;
          if (c < packs) body(kept[k], start + c);
        }
      };
      // Without a branch between two packs, by which the second would wait for the first.
      each_kept([&](NormPacks<P>& to, int64_t pack) {
        to.dy = load_pack<T, kSize>(a.dy, pack), to.x = load_pack<T, kSize>(a.x, pack);
      });
      if (a.dresidual) {
        each_kept(
            [&](NormPacks<P>& to, int64_t pack) { to.through = load_pack<T, kSize>(a.dresidual, pack); });
      }
    }
    for_packs<kTeam, kPacks>(part, [&](int k, int64_t c) {
      const NormPacks<P> packs = [&] {
        if constexpr (kAtOnce) {
          if (k < kPacks) return kept[k];
        }
        return load(start, c);
      }();
      const P weight = load_pack<T, kSize>(a.weight, c);
      if (kKeeps && !kAtOnce && k < kPacks) kept[kKeeps ? k : 0] = packs;
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(packs.dy[i] * weight[i], packs.x[i], dot);
    });
    const float slope = rstd * rstd * team_sum<kTeam>(dot) * a.inverse_cols;

    auto write = [&](int64_t c, const NormPacks<P>& packs, float* column_sums) {
      const P weight = load_pack<T, kSize>(a.weight, c);
      P dx;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float dy = packs.dy[i], x = packs.x[i];
        column_sums[i] = fmaf(dy * x, rstd, column_sums[i]);
        const float inner = fmaf(dy, weight[i], -(x * slope));
        dx.set(i, a.dresidual ? fmaf(rstd, inner, packs.through[i]) : rstd * inner);
      }
      store_pack(a.dx, start + c, dx);
      return dx;
    };
    output.template take_row<kTeam, kPacks>(
        part,
        [&](int k, int64_t c) {
          if (kKeeps && k < kPacks) return write(c, kept[kKeeps ? k : 0], sums[k]);
          return write(c, load(start, c), k < kPacks ? sums[k] : partial + c * kSize);
        },
        [&](int64_t c) { return load_pack<T, kSize>(a.dx, start + c); });
  }
  output.finish();

  if constexpr (kTeams == 1) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t c = member + k * kTeam;
      if (c >= a.packs) continue;
      for (int i = 0; i < kSize; ++i) partial[c * kSize + i] = sums[k][i];
    }
  } else {
    OTTAVA_SHARED(float, all, [kTeams][kKept * kSize]);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      for (int i = 0; i < kSize; ++i) all[team][(member + k * kTeam) * kSize + i] = sums[k][i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < a.packs * kSize; c += kBlock) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kTeams; ++t) sum += all[t][c];
      partial[c] = sum;
    }
  }
}

/// Calls body.operator()<kSize, kBlock, kTeam, kPacks>() with what suits these rows: a warp per short row,
/// else the block; elements one by one if rows are not aligned.
template <class T, class Body>
void dispatch_norm_backward(const RmsNormBackward& b, Body&& body) {
  constexpr int kSize = kPackSize<T>, kPacks = 4;  // of a row, per thread, in registers, at most
  const int64_t cols = b.x.cols();
  if (!rows_are_aligned(cols * int64_t{sizeof(T)}, b.x, b.dy, b.weight, b.dx, b.dresidual)) {
    return body.template operator()<1, 256, 256, kPacks>();
  }
  // A block that keeps four packs per thread is alone on its SM; most models' rows need fewer.
  if (cols <= kSize * 32) return body.template operator()<kSize, 256, 32, 1>();
  if (cols <= kSize * 2 * 32) return body.template operator()<kSize, 256, 32, 2>();
  if (cols <= kSize * kPacks * 32) return body.template operator()<kSize, 256, 32, kPacks>();
  if (cols <= kSize * 2 * 256) return body.template operator()<kSize, 256, 256, 2>();
  if (cols <= kSize * kPacks * 256) return body.template operator()<kSize, 256, 256, kPacks>();
  return body.template operator()<kSize, 512, 512, kPacks>();
}

/// Launches kernel(arguments, target) and adds up the sums of dweight that its blocks leave. kTeams: rows
/// that a block handles at a time.
template <int kTeams, class T, class Target>
void launch_norm_backward(std::string_view op, Stream& stream, const RmsNormBackward& b, int size,
                          unsigned block, void (*kernel)(NormBackwardArguments<T>, Target),
                          const Target& target) {
  const int64_t rows = b.x.rows(), cols = b.x.cols();
  const NormBackwardArguments<T> a{pointer<T>(b.dy),
                                   pointer<T>(b.x),
                                   pointer<T>(b.weight),
                                   pointer<T>(b.dresidual),
                                   pointer<float>(b.rstd),
                                   pointer<T>(b.dx),
                                   pointer<float>(b.workspace),
                                   rows,
                                   cols / size,
                                   1.0f / static_cast<float>(cols)};
  const int64_t groups = std::min(ceil_div(rows, kTeams), kRowGroups);
  if (groups == 0) return;
  launch(op, stream, {.grid = grid_of(groups), .block = block}, kernel, a, target);
  add_row_groups(op, stream, {a.partial, groups, cols, 0, cols}, pointer<float>(b.dweight));
}

}  // namespace ottava::cuda
