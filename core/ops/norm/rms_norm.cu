#include "core/float8/row_output.cuh"
#include "core/ops/norm/rms_norm.cuh"
#include "core/ops/norm/rms_norm_backward.cuh"
#include "core/ops/norm/rms_norm_kernels.h"

// Ceiling: memory bandwidth. Forward moves 2 elements per element (4 with a residual) and does 4 FLOPs on it,
// backward 3 (4) and 9. A row is read from memory once: its packs stay in registers between the two passes,
// and only what does not fit there (of bf16, rows past 16384 elements, and in backward past 8192) is read
// again, from the caches. With FP8 outputs forward moves 3 bytes per bf16 element (7 with a residual),
// backward 7 (9), in place of the 7 (11) and 9 (11) of the operation and a quantization.
namespace ottava::cuda {
namespace {

// Four loads of 16 bytes of a thread in place of two, in 60 registers (four blocks on an SM). With eight
// packs it would take 159, and one block where there are two.
template <class T, int kSize, int kTeam, int kPacks>
__global__ void __launch_bounds__(kNormBlock) forward_kernel(NormArguments<T> a) {
  constexpr bool kAtOnce = kSize > 1 && kPacks <= kFewNormPacks;
  const auto row = read_norm_row<T, kSize, kTeam, kPacks, kAtOnce>(a);
  uint32_t amax = 0;
  for_packs<kTeam, kPacks>(row, [&](int k, int64_t c) {
    const auto y = normalised(row.pack(k, c), row.rstd, load_pack<T, kSize>(a.weight, c));
    amax = max(amax, largest_bits(y));
    store_pack(a.y, row.start + c, y);
  });
  raise_amax(a.amax, amax);
}

template <DType kFormat, fp8::Granularity kGranularity, int kTeam, int kPacks>
__global__ void __launch_bounds__(kNormBlock, kPacks <= kFewNormPacks ? 4 : 1)
    forward_float8_kernel(NormArguments<__nv_bfloat16> a, fp8::cuda::RowTargets to) {
  constexpr int kSize = kPackSize<__nv_bfloat16>;
  // With scales of rows it would spill.
  constexpr bool kAtOnce = kPacks <= kFewNormPacks && kGranularity == fp8::Granularity::tensor;
  const auto row = read_norm_row<__nv_bfloat16, kSize, kTeam, kPacks, kAtOnce>(a);
  fp8::cuda::write_row<kFormat, kGranularity, kTeam, kPacks>(to, row, [&](int k, int64_t c) {
    const auto y = normalised(row.pack(k, c), row.rstd, load_pack<__nv_bfloat16, kSize>(a.weight, c));
    if (a.y) store_pack(a.y, row.start + c, y);
    return y;
  });
}

/// dx in T only, and its amax.
struct AmaxOfGradient {
  uint32_t* target;
  uint32_t amax = 0;

  template <int kTeam, int kPacks, class Make, class Again>
  __device__ __forceinline__ void take_row(const RowPart& part, Make&& make, Again&&) {
    for_packs<kTeam, kPacks>(part, [&](int k, int64_t c) { amax = max(amax, largest_bits(make(k, c))); });
  }
  __device__ __forceinline__ void finish() const { raise_amax(target, amax); }
};

template <class T, int kSize, int kBlock, int kTeam, int kPacks>
__global__ void __launch_bounds__(kBlock, kPacks <= 2 ? 2 : 1)
    backward_kernel(NormBackwardArguments<T> a, uint32_t* amax) {
  norm_backward<kSize, kBlock, kTeam, kPacks>(a, AmaxOfGradient{amax});
}

/// dx in T and in FP8.
template <DType kFormat, fp8::Granularity kGranularity>
struct Float8OfGradient {
  fp8::cuda::RowTargets to;
  fp8::cuda::RowsSeen seen;

  template <int kTeam, int kPacks, class Make, class Again>
  __device__ __forceinline__ void take_row(const RowPart& part, Make&& make, Again&& again) {
    fp8::cuda::write_row<kFormat, kGranularity, kTeam, kPacks>(to, part, seen, make, again);
  }
  __device__ __forceinline__ void finish() const { fp8::cuda::report(to, seen); }
};

template <DType kFormat, fp8::Granularity kGranularity, int kBlock, int kTeam, int kPacks>
__global__ void __launch_bounds__(kBlock, kPacks <= 2 ? 2 : 1)
    backward_float8_kernel(NormBackwardArguments<__nv_bfloat16> a, fp8::cuda::RowTargets to) {
  norm_backward<kPackSize<__nv_bfloat16>, kBlock, kTeam, kPacks>(
      a, Float8OfGradient<kFormat, kGranularity>{to, {}});
}

void forward_float8(Stream& stream, const RmsNormForward& f) {
  fp8::cuda::check_aligned(name_of(f), f.x, f.residual, f.weight, f.sum, f.y, f.float8.out.codes);
  fp8::cuda::dispatch_row_output(f.float8, [&]<DType kFormat, fp8::Granularity kGranularity>() {
    dispatch_norm_forward<__nv_bfloat16>(f.x.cols(), [&]<int kTeam, int kPacks>() {
      launch(name_of(f), stream,
             {.grid = grid_of(ceil_div(f.x.rows(), kNormBlock / kTeam)), .block = kNormBlock},
             forward_float8_kernel<kFormat, kGranularity, kTeam, kPacks>, norm_arguments<__nv_bfloat16>(f),
             fp8::cuda::row_targets(f.float8));
    });
  });
}

void backward_float8(Stream& stream, const RmsNormBackward& b) {
  fp8::cuda::check_aligned(name_of(b), b.x, b.dy, b.weight, b.dx, b.dresidual, b.float8.out.codes);
  fp8::cuda::dispatch_row_output(b.float8, [&]<DType kFormat, fp8::Granularity kGranularity>() {
    dispatch_norm_backward<__nv_bfloat16>(b, [&]<int kSize, int kBlock, int kTeam, int kPacks>() {
      if constexpr (kSize == kPackSize<__nv_bfloat16>) {  // the alternative is for rows that are not aligned
        launch_norm_backward<kBlock / kTeam>(
            name_of(b), stream, b, kSize, kBlock,
            backward_float8_kernel<kFormat, kGranularity, kBlock, kTeam, kPacks>,
            fp8::cuda::row_targets(b.float8));
      }
    });
  });
}

template <class T, int kSize, int kTeam, int kPacks = kNormPacks>
void launch_forward(Stream& stream, const RmsNormForward& f) {
  launch("rms_norm_forward", stream,
         {.grid = grid_of(ceil_div(f.x.rows(), kNormBlock / kTeam)), .block = kNormBlock},
         forward_kernel<T, kSize, kTeam, kPacks>, norm_arguments<T>(f));
}

}  // namespace

void rms_norm_forward(Stream& stream, const RmsNormForward& f) {
  if (!f.float8.empty()) return forward_float8(stream, f);
  dispatch_element(f.x.dtype, "rms_norm_forward", [&]<class T>() {
    constexpr int kSize = kPackSize<T>;
    const int64_t cols = f.x.cols();
    if (!rows_are_aligned(cols * int64_t{sizeof(T)}, f.x, f.residual, f.weight, f.sum, f.y)) {
      return launch_forward<T, 1, kNormBlock>(stream, f);
    }
    dispatch_norm_forward<T>(
        cols, [&]<int kTeam, int kPacks>() { launch_forward<T, kSize, kTeam, kPacks>(stream, f); });
  });
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& b) {
  if (!b.float8.empty()) return backward_float8(stream, b);
  dispatch_element(b.x.dtype, "rms_norm_backward", [&]<class T>() {
    dispatch_norm_backward<T>(b, [&]<int kSize, int kBlock, int kTeam, int kPacks>() {
      launch_norm_backward<kBlock / kTeam>("rms_norm_backward", stream, b, kSize, kBlock,
                                           backward_kernel<T, kSize, kBlock, kTeam, kPacks>,
                                           pointer<uint32_t>(b.amax));
    });
  });
}

}  // namespace ottava::cuda
