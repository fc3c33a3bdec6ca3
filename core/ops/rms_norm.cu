#include <algorithm>

#include "core/cuda/row_groups.h"
#include "core/ops/rms_norm.cuh"
#include "core/ops/rms_norm_kernels.h"

// Ceiling: memory bandwidth. Forward moves 2 elements per element (4 with a residual) and does 4 FLOPs on it,
// backward 3 (4) and 9. A row is read from memory once: its packs stay in registers between the two passes,
// and only what does not fit there (rows past 16384 bf16 elements) is read again, from the L2 cache.
namespace ottava::cuda {
namespace {

constexpr int kBackwardPacks = 4;  // of a row, per thread, in registers, at most

template <class T, int kSize, int kTeam>
__global__ void __launch_bounds__(kNormBlock) forward_kernel(NormArguments<T> a) {
  const auto row = read_norm_row<T, kSize, kTeam>(a);
  uint32_t amax = 0;
  auto write = [&](int k, int64_t c) {
    const auto y = normalised(row.pack(k, c), row.rstd, load_pack<T, kSize>(a.weight, c));
#pragma unroll
    for (int i = 0; i < kSize; ++i) amax = max(amax, abs_bits(y[i]));
    store_pack(a.y, row.start + c, y);
  };
#pragma unroll
  for (int k = 0; k < kNormPacks; ++k) {
    const int64_t c = row.member + k * kTeam;
    if (c < row.packs) write(k, c);
  }
  for (int64_t c = row.member + kNormPacks * kTeam; c < row.packs; c += kTeam) write(kNormPacks, c);
  raise_amax(a.amax, amax);
}

template <class T>
struct BackwardArguments {
  const T *dy, *x, *weight, *dresidual;  // dresidual may be null
  const float* rstd;
  T* dx;           // may be dy or dresidual
  float* partial;  // [gridDim.x, cols]
  uint32_t* amax;
  int64_t rows, packs;
  float inverse_cols;
};

// Each team walks over rows and sums its columns' share of dweight in registers; a block's teams are added in
// order.
template <class T, int kSize, int kBlock, int kTeam, int kPacks>
__global__ void __launch_bounds__(kBlock) backward_kernel(BackwardArguments<T> a) {
  using P = Pack<T, kSize>;
  constexpr int kTeams = kBlock / kTeam, kKept = kPacks * kTeam;
  const int team = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  float* partial = a.partial + blockIdx.x * a.packs * kSize;

  float sums[kPacks][kSize] = {};
  for (int64_t c = member + kKept; c < a.packs;
       c += kTeam) {  // columns without a register: one team per block
    for (int i = 0; i < kSize; ++i) partial[c * kSize + i] = 0;
  }
  uint32_t amax = 0;
  for (int64_t first = blockIdx.x * int64_t{kTeams}; first < a.rows; first += gridDim.x * int64_t{kTeams}) {
    const int64_t row = first + team;
    const bool active = row < a.rows;
    const int64_t packs = active ? a.packs : 0, start = row * a.packs;
    const float rstd = active ? a.rstd[row] : 0;

    float dot = 0;
    P dy_kept[kPacks], x_kept[kPacks];
    auto add_to_dot = [&](const P& dy, const P& x, const P& w) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot += dy[i] * w[i] * x[i];
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t c = member + k * kTeam;
      if (c >= packs) continue;
      dy_kept[k] = load_pack<T, kSize>(a.dy, start + c);
      x_kept[k] = load_pack<T, kSize>(a.x, start + c);
      add_to_dot(dy_kept[k], x_kept[k], load_pack<T, kSize>(a.weight, c));
    }
    for (int64_t c = member + kKept; c < packs; c += kTeam) {
      add_to_dot(load_pack<T, kSize>(a.dy, start + c), load_pack<T, kSize>(a.x, start + c),
                 load_pack<T, kSize>(a.weight, c));
    }
    const float slope = rstd * rstd * team_sum<kTeam>(dot) * a.inverse_cols;

    auto write = [&](int64_t c, const P& dy, const P& x, float* column_sums) {
      const P w = load_pack<T, kSize>(a.weight, c);
      P dx, through;
      if (a.dresidual) through = load_pack<T, kSize>(a.dresidual, start + c);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        column_sums[i] += dy[i] * x[i] * rstd;
        const float inner = rstd * (dy[i] * w[i] - x[i] * slope);
        dx.set(i, a.dresidual ? inner + through[i] : inner);
        amax = max(amax, abs_bits(dx[i]));
      }
      store_pack(a.dx, start + c, dx);
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t c = member + k * kTeam;
      if (c < packs) write(c, dy_kept[k], x_kept[k], sums[k]);
    }
    for (int64_t c = member + kKept; c < packs; c += kTeam) {
      write(c, load_pack<T, kSize>(a.dy, start + c), load_pack<T, kSize>(a.x, start + c),
            partial + c * kSize);
    }
  }
  raise_amax(a.amax, amax);

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

template <class T, int kSize, int kTeam>
void launch_forward(Stream& stream, const RmsNormForward& f) {
  launch("rms_norm_forward", stream,
         {.grid = grid_of(ceil_div(f.x.rows(), kNormBlock / kTeam)), .block = kNormBlock},
         forward_kernel<T, kSize, kTeam>, norm_arguments<T>(f));
}

template <class T, int kSize, int kBlock, int kTeam, int kPacks = kBackwardPacks>
void launch_backward(Stream& stream, const RmsNormBackward& b) {
  const int64_t rows = b.x.rows(), cols = b.x.cols(), rows_per_block = kBlock / kTeam;
  BackwardArguments<T> a{static_cast<const T*>(b.dy.data),
                         static_cast<const T*>(b.x.data),
                         static_cast<const T*>(b.weight.data),
                         static_cast<const T*>(b.dresidual.data),
                         static_cast<const float*>(b.rstd.data),
                         static_cast<T*>(b.dx.data),
                         static_cast<float*>(b.workspace.data),
                         static_cast<uint32_t*>(b.amax.data),
                         rows,
                         cols / kSize,
                         1.0f / static_cast<float>(cols)};
  const auto groups = std::min(ceil_div(rows, rows_per_block), kRowGroups);
  if (groups == 0) return;
  launch("rms_norm_backward", stream, {.grid = grid_of(groups), .block = kBlock},
         backward_kernel<T, kSize, kBlock, kTeam, kPacks>, a);
  add_row_groups("rms_norm_backward", stream, {a.partial, groups, cols, 0, cols},
                 static_cast<float*>(b.dweight.data));
}

}  // namespace

void rms_norm_forward(Stream& stream, const RmsNormForward& f) {
  dispatch_float(f.x.dtype, "rms_norm_forward", [&]<class Host>() {
    using T = Element<Host>;
    constexpr int kSize = kPackSize<T>;
    const int64_t cols = f.x.cols();
    if (!rows_are_aligned(cols * int64_t{sizeof(T)}, f.x, f.residual, f.weight, f.sum, f.y)) {
      return launch_forward<T, 1, kNormBlock>(stream, f);
    }
    if (norm_row_is_short<T>(cols)) return launch_forward<T, kSize, 32>(stream, f);
    return launch_forward<T, kSize, kNormBlock>(stream, f);
  });
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& b) {
  dispatch_float(b.x.dtype, "rms_norm_backward", [&]<class Host>() {
    using T = Element<Host>;
    constexpr int kSize = kPackSize<T>;
    const int64_t cols = b.x.cols();
    if (!rows_are_aligned(cols * int64_t{sizeof(T)}, b.x, b.dy, b.weight, b.dx, b.dresidual)) {
      return launch_backward<T, 1, 256, 256>(stream, b);
    }
    if (cols <= kSize * kBackwardPacks * 32) return launch_backward<T, kSize, 256, 32>(stream, b);
    // A block that keeps four packs a thread is alone on its SM: most models' rows need two.
    if (cols <= kSize * 2 * 256) return launch_backward<T, kSize, 256, 256, 2>(stream, b);
    if (cols <= kSize * kBackwardPacks * 256) return launch_backward<T, kSize, 256, 256>(stream, b);
    return launch_backward<T, kSize, 512, 512>(stream, b);
  });
}

}  // namespace ottava::cuda
