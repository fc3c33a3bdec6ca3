#include "fp8/ops/rms_norm_backward_quantize.h"

#include "core/ops/norm/rms_norm_backward.cuh"
#include "fp8/ops/row_output.cuh"

// Ceiling: memory bandwidth: 7 bytes per bf16 element (9 with a residual) in place of the 9 (11) of a norm's
// backward pass and a quantization.
namespace ottava::fp8::cuda {
namespace {

/// dx in T and in FP8.
template <DType kFormat, Granularity kGranularity>
struct QuantizedGradient {
  RowTargets to;
  RowsSeen seen;

  template <int kTeam, int kPacks, class Make, class Again>
  __device__ __forceinline__ void take_row(const RowPart& part, Make&& make, Again&& again) {
    write_row<kFormat, kGranularity, kTeam, kPacks>(to, part, seen, make, again);
  }
  __device__ __forceinline__ void finish() const { report(to, seen); }
};

template <class T, DType kFormat, Granularity kGranularity, int kBlock, int kTeam, int kPacks>
__global__ void __launch_bounds__(kBlock) norm_backward_kernel(NormBackwardArguments<T> a, RowTargets to) {
  norm_backward<kPackSize<T>, kBlock, kTeam, kPacks>(a, QuantizedGradient<kFormat, kGranularity>{to, {}});
}

}  // namespace

void rms_norm_backward_quantize(Stream& stream, const RmsNormBackwardQuantize& q) {
  const RmsNormBackward& b = q.norm;
  check_aligned("rms_norm_backward_quantize", b.x, b.dy, b.weight, b.dx, b.dresidual, q.output.out.codes);
  dispatch_float(b.x.dtype, "rms_norm_backward_quantize", [&]<class Host>() {
    using T = Element<Host>;
    dispatch_row_output(q.output, [&]<DType kFormat, Granularity kGranularity>() {
      dispatch_norm_backward<T>(b, [&]<int kSize, int kBlock, int kTeam, int kPacks>() {
        if constexpr (kSize == kPackSize<T>) {  // the alternative is for rows that are not aligned
          launch_norm_backward<kBlock / kTeam>(
              "rms_norm_backward_quantize", stream, b, kSize, kBlock,
              norm_backward_kernel<T, kFormat, kGranularity, kBlock, kTeam, kPacks>, row_targets(q.output));
        }
      });
    });
  });
}

}  // namespace ottava::fp8::cuda
