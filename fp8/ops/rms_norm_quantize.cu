#include "core/ops/norm/rms_norm.cuh"
#include "fp8/ops/rms_norm_quantize.h"
#include "fp8/ops/row_output.cuh"

// Ceiling: memory bandwidth: 3 bytes per bf16 element (7 with a residual) in place of the 7 (11) of a norm
// and a quantization.
namespace ottava::fp8::cuda {
namespace {

static_assert(kRowPacks == kNormPacks);

template <class T, DType kFormat, Granularity kGranularity, int kTeam>
__global__ void __launch_bounds__(kNormBlock) rms_norm_kernel(NormArguments<T> a, RowTargets to) {
  constexpr int kSize = kPackSize<T>;
  const auto row = read_norm_row<T, kSize, kTeam>(a);
  write_row<kFormat, kGranularity, kTeam>(to, {row.row, row.packs, row.member}, [&](int k, int64_t c) {
    const auto y = normalised(row.pack(k, c), row.rstd, load_pack<T, kSize>(a.weight, c));
    if (a.y) store_pack(a.y, row.start + c, y);
    return y;
  });
}

}  // namespace

void rms_norm_quantize(Stream& stream, const RmsNormQuantize& q) {
  const RmsNormForward& f = q.norm;
  check_aligned("rms_norm_quantize", f.x, f.residual, f.weight, f.sum, f.y, q.output.out.codes);
  dispatch_float(f.x.dtype, "rms_norm_quantize", [&]<class Host>() {
    using T = Element<Host>;
    dispatch_row_output(q.output, [&]<DType kFormat, Granularity kGranularity>() {
      const bool is_short = norm_row_is_short<T>(f.x.cols());
      launch("rms_norm_quantize", stream,
             {.grid = grid_of(ceil_div(f.x.rows(), is_short ? kNormBlock / 32 : 1)), .block = kNormBlock},
             is_short ? rms_norm_kernel<T, kFormat, kGranularity, 32>
                      : rms_norm_kernel<T, kFormat, kGranularity, kNormBlock>,
             norm_arguments<T>(f), row_targets(q.output));
    });
  });
}

}  // namespace ottava::fp8::cuda
