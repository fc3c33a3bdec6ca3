#include "core/ops/norm/rms_norm.cuh"
#include "core/ops/norm/rms_norm_backward.cuh"
#include "core/ops/norm/rms_norm_kernels.h"

// Ceiling: memory bandwidth. Forward moves 2 elements per element (4 with a residual) and does 4 FLOPs on it,
// backward 3 (4) and 9. A row is read from memory once: its packs stay in registers between the two passes,
// and only what does not fit there (of bf16, rows past 16384 elements, and in backward past 8192) is read
// again, from the caches.
namespace ottava::cuda {
namespace {

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

/// dx in T alone, and its amax.
struct AmaxOfGradient {
  uint32_t* target;
  uint32_t amax = 0;

  template <int kTeam, int kPacks, class Make, class Again>
  __device__ __forceinline__ void take_row(const RowPart& part, Make&& make, Again&&) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t c = part.member + k * kTeam;
      if (c < part.packs) measure(make(k, c));
    }
    for (int64_t c = part.member + kPacks * kTeam; c < part.packs; c += kTeam) measure(make(kPacks, c));
  }
  __device__ __forceinline__ void finish() const { raise_amax(target, amax); }

  template <class T, int kSize>
  __device__ __forceinline__ void measure(const Pack<T, kSize>& dx) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) amax = max(amax, abs_bits(dx[i]));
  }
};

template <class T, int kSize, int kBlock, int kTeam, int kPacks>
__global__ void __launch_bounds__(kBlock) backward_kernel(NormBackwardArguments<T> a, uint32_t* amax) {
  norm_backward<kSize, kBlock, kTeam, kPacks>(a, AmaxOfGradient{amax});
}

template <class T, int kSize, int kTeam>
void launch_forward(Stream& stream, const RmsNormForward& f) {
  launch("rms_norm_forward", stream,
         {.grid = grid_of(ceil_div(f.x.rows(), kNormBlock / kTeam)), .block = kNormBlock},
         forward_kernel<T, kSize, kTeam>, norm_arguments<T>(f));
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
    dispatch_norm_backward<T>(b, [&]<int kSize, int kBlock, int kTeam, int kPacks>() {
      launch_norm_backward<kBlock / kTeam>("rms_norm_backward", stream, b, kSize, kBlock,
                                           backward_kernel<T, kSize, kBlock, kTeam, kPacks>,
                                           static_cast<uint32_t*>(b.amax.data));
    });
  });
}

}  // namespace ottava::cuda
