#include "core/ops/swiglu.cuh"
#include "fp8/ops/row_output.cuh"
#include "fp8/ops/swiglu_quantize.h"

// Ceiling: memory bandwidth: 5 bytes per bf16 element of the output in place of the 9 of swiglu and a
// quantization, and about 25 instructions.
namespace ottava::fp8::cuda {
namespace {

constexpr int kBlock = 256;

template <class T>
struct Arguments {
  const T* gate_up;
  T* out;  // may be null
};

template <class T, DType kFormat, Granularity kGranularity, int kTeam>
__global__ void __launch_bounds__(kBlock) swiglu_kernel(Arguments<T> a, RowTargets to) {
  constexpr int kSize = kPackSize<T>;
  const int64_t row = blockIdx.x * int64_t{kBlock / kTeam} + threadIdx.x / kTeam, packs = to.cols / kSize;
  const RowPart part{row, row < to.rows ? packs : 0, static_cast<int>(threadIdx.x % kTeam)};
  write_row<kFormat, kGranularity, kTeam>(to, part, [&](int, int64_t c) {
    const int64_t gate = 2 * row * packs + c;
    const auto out =
        swiglu_of(load_pack<T, kSize>(a.gate_up, gate), load_pack<T, kSize>(a.gate_up, gate + packs));
    if (a.out) store_pack(a.out, row * packs + c, out);
    return out;
  });
}

}  // namespace

void swiglu_quantize(Stream& stream, const SwigluQuantize& q) {
  const SwigluForward& f = q.swiglu;
  check_aligned("swiglu_quantize", f.gate_up, f.out, q.output.out.codes);
  dispatch_float(f.gate_up.dtype, "swiglu_quantize", [&]<class Host>() {
    using T = Element<Host>;
    const Arguments<T> a{static_cast<const T*>(f.gate_up.data), static_cast<T*>(f.out.data)};
    dispatch_row_output(q.output, [&]<DType kFormat, Granularity kGranularity>() {
      const RowTargets to = row_targets(q.output);
      const bool is_short = to.cols <= kPackSize<T> * kRowPacks * 32;  // a warp has the row in its registers
      launch("swiglu_quantize", stream,
             {.grid = grid_of(ceil_div(to.rows, is_short ? kBlock / 32 : 1)), .block = kBlock},
             is_short ? swiglu_kernel<T, kFormat, kGranularity, 32>
                      : swiglu_kernel<T, kFormat, kGranularity, kBlock>,
             a, to);
    });
  });
}

}  // namespace ottava::fp8::cuda
