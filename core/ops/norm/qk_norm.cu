#include <algorithm>

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_groups.h"
#include "core/ops/norm/qk_norm_kernels.h"

// Ceiling: memory bandwidth. Forward moves 2 elements per element and does 4 FLOPs on it, backward 3 and 9,
// and reads the value heads where the amax is wanted. A warp takes a head at a time; D = 128 is 4 elements
// per lane.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256, kWarps = kBlock / 32;
constexpr int kPacks = 2;  // of a head, per lane
constexpr int kMaxHeadDim = 256;

template <class T>
struct Arguments {
  const T *qkv, *weight_q, *weight_k;
  T* out;  // backward: dqkv, in and out
  float *rstd, *partial;
  uint32_t* amax;
  int64_t tokens, row;
  int queries, heads, kv_heads, head_dim;  // heads: queries and keys
  float eps;
};

template <class T, int kSize>
__global__ void __launch_bounds__(kBlock) forward_kernel(Arguments<T> a) {
  using P = Pack<T, kSize>;
  constexpr int kLanePacks = kPacks * 4 / kSize;  // kSize 4, or 1 for odd head dimensions
  const int lane = threadIdx.x % 32, packs = a.head_dim / kSize, all = a.heads + a.kv_heads;
  const int64_t first = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  for (int64_t item = first; item < a.tokens * all; item += gridDim.x * int64_t{kWarps}) {
    const int64_t token = item / all, start = token * a.row + item % all * a.head_dim;
    const int head = static_cast<int>(item % all);
    P x[kLanePacks];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kLanePacks; ++k) {
      if (lane + 32 * k >= packs) continue;
      x[k] = load_pack<T, kSize>(a.qkv + start, lane + 32 * k);
#pragma unroll
      for (int i = 0; i < kSize; ++i) squares = fmaf(x[k][i], x[k][i], squares);
    }
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.head_dim) + a.eps);
    const T* weight = head < a.queries ? a.weight_q : a.weight_k;
#pragma unroll
    for (int k = 0; k < kLanePacks; ++k) {
      if (lane + 32 * k >= packs) continue;
      if (head < a.heads) {  // values pass as they are
        const P w = load_pack<T, kSize>(weight, lane + 32 * k);
#pragma unroll
        for (int i = 0; i < kSize; ++i) x[k].set(i, x[k][i] * rstd * w[i]);
      }
      store_pack(a.out + start, lane + 32 * k, x[k]);
    }
    if (head < a.heads && lane == 0) a.rstd[token * a.heads + head] = rstd;
  }
}

/// Bits of the largest magnitude in the value heads that begin with the warp's `first`.
template <class T, int kSize>
__device__ __forceinline__ uint32_t amax_of_values(const Arguments<T>& a, int64_t first) {
  uint32_t amax = 0;
  for (int64_t item = first; item < a.tokens * a.kv_heads; item += gridDim.x * int64_t{kWarps}) {
    const T* values = a.out + item / a.kv_heads * a.row + (a.heads + item % a.kv_heads) * int64_t{a.head_dim};
    for (int pack = threadIdx.x % 32; pack < a.head_dim / kSize; pack += 32) {
      amax = max(amax, largest_bits(load_pack<T, kSize>(values, pack)));
    }
  }
  return amax;
}

// Each warp sums its heads' share of both weights' gradients in registers; a block's warps are added in
// order.
template <class T, int kSize>
__global__ void __launch_bounds__(kBlock) backward_kernel(Arguments<T> a) {
  using P = Pack<T, kSize>;
  constexpr int kLanePacks = kPacks * 4 / kSize;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, packs = a.head_dim / kSize;
  float sums[2][kLanePacks][kSize] = {};  // of weight_q, weight_k
  uint32_t amax = 0;
  const int64_t first = blockIdx.x * int64_t{kWarps} + warp;
  for (int64_t item = first; item < a.tokens * a.heads; item += gridDim.x * int64_t{kWarps}) {
    const int64_t token = item / a.heads, start = token * a.row + item % a.heads * a.head_dim;
    const bool is_query = item % a.heads < a.queries;
    const T* weight = is_query ? a.weight_q : a.weight_k;
    const float rstd = a.rstd[item];
    P x[kLanePacks], dy[kLanePacks], w[kLanePacks];
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kLanePacks; ++k) {
      if (lane + 32 * k >= packs) continue;
      x[k] = load_pack<T, kSize>(a.qkv + start, lane + 32 * k);
      dy[k] = load_pack<T, kSize>(a.out + start, lane + 32 * k);
      w[k] = load_pack<T, kSize>(weight, lane + 32 * k);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(dy[k][i] * w[k][i], x[k][i], dot);
    }
    const float slope = rstd * rstd * warp_sum(dot) / static_cast<float>(a.head_dim);
#pragma unroll
    for (int k = 0; k < kLanePacks; ++k) {
      if (lane + 32 * k >= packs) continue;
      P dx;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float share = __fmul_rn(dy[k][i] * x[k][i], rstd);
        sums[0][k][i] += is_query ? share : 0.0f;
        sums[1][k][i] += is_query ? 0.0f : share;
        dx.set(i, rstd * fmaf(dy[k][i], w[k][i], -(x[k][i] * slope)));
        amax = max(amax, abs_bits(dx[i]));
      }
      store_pack(a.out + start, lane + 32 * k, dx);
    }
  }
  if (a.amax) raise_amax(a.amax, max(amax, amax_of_values<T, kSize>(a, first)));
  OTTAVA_SHARED(float, all, [kWarps][2 * kMaxHeadDim]);
#pragma unroll
  for (int k = 0; k < kLanePacks; ++k) {
    if (lane + 32 * k >= packs) continue;
    for (int i = 0; i < kSize; ++i) {
      const int c = (lane + 32 * k) * kSize + i;
      all[warp][c] = sums[0][k][i];
      all[warp][a.head_dim + c] = sums[1][k][i];
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * a.head_dim; c += kBlock) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += all[w][c];
    a.partial[blockIdx.x * int64_t{2} * a.head_dim + c] = sum;
  }
}

/// What forward and backward share.
template <class T, class Args>
Arguments<T> arguments_of(std::string_view op, const Args& a) {
  if (a.heads.head_dim > kMaxHeadDim) {
    fail<ShapeError>(op, "head dimension is {}, at most {} is possible on cuda", a.heads.head_dim,
                     kMaxHeadDim);
  }
  return {.qkv = pointer<T>(a.qkv),
          .weight_q = pointer<T>(a.weight_q),
          .weight_k = pointer<T>(a.weight_k),
          .rstd = pointer<float>(a.rstd),
          .tokens = a.qkv.rows(),
          .row = a.heads.row(),
          .queries = static_cast<int>(a.heads.heads),
          .heads = static_cast<int>(a.heads.heads + a.heads.kv_heads),
          .kv_heads = static_cast<int>(a.heads.kv_heads),
          .head_dim = static_cast<int>(a.heads.head_dim)};
}

/// Four elements at once where every head of every tensor starts at a multiple of four.
template <class... Tensors>
bool in_fours(const AttentionHeads& heads, const Tensors&... tensors) {
  return heads.head_dim % 4 == 0 && rows_are_aligned(0, tensors...);
}

}  // namespace

void qk_norm_forward(Stream& stream, const QkNormForward& f) {
  constexpr std::string_view kOp = "qk_norm_forward";
  dispatch_element(f.qkv.dtype, kOp, [&]<class T>() {
    auto a = arguments_of<T>(kOp, f);
    a.out = pointer<T>(f.out);
    a.eps = f.eps;
    const int64_t items = a.tokens * (a.heads + a.kv_heads);
    const LaunchShape shape{.grid = grid_of(ceil_div(items, kWarps)), .block = kBlock};
    const bool fours = in_fours(f.heads, f.qkv, f.weight_q, f.weight_k, f.out);
    launch(kOp, stream, shape, fours ? forward_kernel<T, 4> : forward_kernel<T, 1>, a);
  });
}

void qk_norm_backward(Stream& stream, const QkNormBackward& b) {
  constexpr std::string_view kOp = "qk_norm_backward";
  dispatch_element(b.qkv.dtype, kOp, [&]<class T>() {
    auto a = arguments_of<T>(kOp, b);
    a.out = pointer<T>(b.dqkv);
    a.partial = pointer<float>(b.workspace);
    a.amax = pointer<uint32_t>(b.amax);
    const int64_t groups = std::min(ceil_div(a.tokens * a.heads, kWarps), kRowGroups);
    if (groups == 0) return;
    const bool fours = in_fours(b.heads, b.qkv, b.weight_q, b.weight_k, b.dqkv);
    launch(kOp, stream, {.grid = grid_of(groups), .block = kBlock},
           fours ? backward_kernel<T, 4> : backward_kernel<T, 1>, a);
    const int64_t dim = a.head_dim;
    add_row_groups(kOp, stream, {a.partial, groups, 2 * dim, 0, dim}, pointer<float>(b.dweight_q));
    add_row_groups(kOp, stream, {a.partial, groups, 2 * dim, dim, dim}, pointer<float>(b.dweight_k));
  });
}

}  // namespace ottava::cuda
