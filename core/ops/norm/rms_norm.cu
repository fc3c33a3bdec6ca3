#include "core/float8/row_output.cuh"
#include "core/ops/norm/rms_norm.cuh"
#include "core/ops/norm/rms_norm_backward.cuh"
#include "core/ops/norm/rms_norm_kernels.h"

// Ceiling: memory bandwidth. Forward moves 2 elements per element (4 with a residual) and does 4 FLOPs on it,
// backward 3 (4) and 9. A row is read from memory once: its packs stay in registers between the two passes,
// or in shared memory, and only what does not fit there (of bf16, rows past 16384 elements, and in backward
// past 8192) is read again, from the caches. With FP8 outputs forward moves 3 bytes per bf16 element (7 with
// a residual), backward 7 (9), in place of the 7 (11) and 9 (11) of the operation and a quantization.
namespace ottava::cuda {
namespace {

/// Blocks that an SM shall have: all loads of a thread are under way at once, and these registers hold them.
/// With bf16 rows of 4096 elements that is 48 KiB of rows an SM, 80 with a residual. Six blocks are all that
/// SMs of some GPUs have threads for.
template <class Team, bool kResidual>
constexpr int forward_blocks() {
  if (Team::kPacks == 1) return 6;
  if (Team::kPacks <= 4) return kResidual ? 5 : 6;
  return 2;
}

template <class T, int kSize, class Team, bool kResidual>
__global__ void __launch_bounds__(kNormBlock, forward_blocks<Team, kResidual>())
    forward_kernel(NormArguments<T> a) {
  const auto row = read_norm_row<T, kSize, Team, kResidual>(a);
  uint32_t amax = 0;
  for_packs<Team::kTeam, Team::kPacks, !Team::kWhole>(row, [&](int k, int64_t c) {
    const auto y = row.normalised(k, c);
    amax = max(amax, largest_bits(y));
    store_pack(a.y, row.start + c, y);
  });
  raise_amax(a.amax, amax);
}

template <class Team>
constexpr int forward_float8_blocks() {
  return Team::kPacks <= 2 ? 6 : Team::kPacks <= 4 ? 4 : 2;
}
template <DType kFormat, fp8::Granularity kGranularity, class Team, bool kResidual>
__global__ void __launch_bounds__(kNormBlock, forward_float8_blocks<Team>())
    forward_float8_kernel(NormArguments<__nv_bfloat16> a, fp8::cuda::RowTargets to) {
  const auto row = read_norm_row<__nv_bfloat16, kPackSize<__nv_bfloat16>, Team, kResidual>(a);
  fp8::cuda::write_row<kFormat, kGranularity, Team::kTeam, Team::kPacks, !Team::kWhole>(
      to, row, [&](int k, int64_t c) {
        const auto y = row.normalised(k, c);
        if (a.y) store_pack(a.y, row.start + c, y);
        return y;
      });
}

/// dx in T only, and its amax.
struct AmaxOfGradient {
  uint32_t* target;
  uint32_t amax = 0;

  template <int kTeam, int kPacks, bool kMore, class Make, class Again>
  __device__ __forceinline__ void take_row(const RowPart& part, Make&& make, Again&&) {
    for_packs<kTeam, kPacks, kMore>(part,
                                    [&](int k, int64_t c) { amax = max(amax, largest_bits(make(k, c))); });
  }
  __device__ __forceinline__ void finish() const { raise_amax(target, amax); }
};

template <class T, class Team>
__global__ void __launch_bounds__(Team::kBlock, 512 / Team::kBlock)
    backward_kernel(NormBackwardArguments<T> a, uint32_t* amax) {
  norm_backward<Team>(a, AmaxOfGradient{amax});
}

/// dx in T and in FP8.
template <DType kFormat, fp8::Granularity kGranularity>
struct Float8OfGradient {
  fp8::cuda::RowTargets to;
  fp8::cuda::RowsSeen seen;

  template <int kTeam, int kPacks, bool kMore, class Make, class Again>
  __device__ __forceinline__ void take_row(const RowPart& part, Make&& make, Again&& again) {
    fp8::cuda::write_row<kFormat, kGranularity, kTeam, kPacks, kMore>(to, part, seen, make, again);
  }
  __device__ __forceinline__ void finish() const { fp8::cuda::report(to, seen); }
};

template <DType kFormat, fp8::Granularity kGranularity, class Team>
__global__ void __launch_bounds__(Team::kBlock, 512 / Team::kBlock)
    backward_float8_kernel(NormBackwardArguments<__nv_bfloat16> a, fp8::cuda::RowTargets to) {
  norm_backward<Team>(a, Float8OfGradient<kFormat, kGranularity>{to, {}});
}

template <class Team, class... P, class... A>
void launch_forward(std::string_view op, Stream& stream, const RmsNormForward& f, void (*kernel)(P...),
                    A&&... arguments) {
  launch(op, stream, {.grid = grid_of(ceil_div(f.x.rows(), kNormBlock / Team::kTeam)), .block = kNormBlock},
         kernel, arguments...);
}

void forward_float8(Stream& stream, const RmsNormForward& f) {
  using T = __nv_bfloat16;
  fp8::cuda::check_aligned(name_of(f), f.x, f.residual, f.weight, f.sum, f.y, f.float8.out.codes);
  fp8::cuda::dispatch_row_output(f.float8, [&]<DType kFormat, fp8::Granularity kGranularity>() {
    dispatch_norm_forward<T>(f.x.cols(), [&]<class Team>(Team) {
      const auto kernel = f.residual.empty() ? forward_float8_kernel<kFormat, kGranularity, Team, false>
                                             : forward_float8_kernel<kFormat, kGranularity, Team, true>;
      launch_forward<Team>(name_of(f), stream, f, kernel, norm_arguments<T>(f),
                           fp8::cuda::row_targets(f.float8));
    });
  });
}

void backward_float8(Stream& stream, const RmsNormBackward& b) {
  fp8::cuda::check_aligned(name_of(b), b.x, b.dy, b.weight, b.dx, b.dresidual, b.workspace,
                           b.float8.out.codes);
  fp8::cuda::dispatch_row_output(b.float8, [&]<DType kFormat, fp8::Granularity kGranularity>() {
    dispatch_norm_backward<__nv_bfloat16>(b, [&]<class Team>(Team) {
      if constexpr (Team::kSize > 1) {  // the alternative is for rows that are not aligned
        launch_norm_backward<Team>(name_of(b), stream, b, backward_float8_kernel<kFormat, kGranularity, Team>,
                                   fp8::cuda::row_targets(b.float8));
      }
    });
  });
}

}  // namespace

void rms_norm_forward(Stream& stream, const RmsNormForward& f) {
  if (!f.float8.empty()) return forward_float8(stream, f);
  dispatch_element(f.x.dtype, "rms_norm_forward", [&]<class T>() {
    const auto launch_with = [&]<int kSize, class Team>(Team) {
      const auto kernel =
          f.residual.empty() ? forward_kernel<T, kSize, Team, false> : forward_kernel<T, kSize, Team, true>;
      launch_forward<Team>("rms_norm_forward", stream, f, kernel, norm_arguments<T>(f));
    };
    const int64_t cols = f.x.cols();
    if (!rows_are_aligned(cols * int64_t{sizeof(T)}, f.x, f.residual, f.weight, f.sum, f.y)) {
      return launch_with.template operator()<1>(NormTeam<kNormBlock, kNormPacks, false>{});
    }
    dispatch_norm_forward<T>(cols, [&](auto team) { launch_with.template operator()<kPackSize<T>>(team); });
  });
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& b) {
  if (!b.float8.empty()) return backward_float8(stream, b);
  dispatch_element(b.x.dtype, "rms_norm_backward", [&]<class T>() {
    dispatch_norm_backward<T>(b, [&]<class Team>(Team) {
      launch_norm_backward<Team>("rms_norm_backward", stream, b, backward_kernel<T, Team>,
                                 pointer<uint32_t>(b.amax));
    });
  });
}

}  // namespace ottava::cuda
