#include "fp8/ops/swiglu_backward_quantize.h"

#include "core/ops/swiglu.cuh"
#include "fp8/ops/row_output.cuh"

// Ceiling: memory bandwidth: 12 bytes per bf16 element of dout (14 with out) in place of the 16 (18) of
// swiglu's backward pass and a quantization, and about 40 instructions. Rows that registers do not hold are
// read again from the L2 cache.
namespace ottava::fp8::cuda {
namespace {

constexpr int kPairs = 4;  // packs of each half of a row, per thread, in registers

template <class T>
struct Arguments {
  const T *dout, *gate_up;
  T *dgate_up, *out;  // dgate_up may be gate_up; out may be null
};

/// kWhole: groups of scales end where the first half does, so that both halves are made together.
template <class T, DType kFormat, Granularity kGranularity, bool kWhole, int kBlock, int kTeam>
__global__ void __launch_bounds__(kBlock) swiglu_backward_kernel(Arguments<T> a, RowTargets to) {
  constexpr int kSize = kPackSize<T>;
  using P = Pack<T, kSize>;
  const int64_t row = blockIdx.x * int64_t{kBlock / kTeam} + threadIdx.x / kTeam;
  const int64_t half = to.cols / 2 / kSize, start = 2 * row * half;
  const int member = static_cast<int>(threadIdx.x % kTeam);
  const bool active = row < to.rows;
  auto make = [&](int, int64_t c) -> TwoPacks<P> {
    const auto made = swiglu_gradient(load_pack<T, kSize>(a.dout, row * half + c),
                                      load_pack<T, kSize>(a.gate_up, start + c),
                                      load_pack<T, kSize>(a.gate_up, start + half + c));
    store_pack(a.dgate_up, start + c, made.dgate);
    store_pack(a.dgate_up, start + half + c, made.dup);
    if (a.out) store_pack(a.out, row * half + c, made.out);
    return {made.dgate, made.dup};
  };
  RowsSeen seen;
  if constexpr (kWhole) {
    write_row<kFormat, kGranularity, kTeam,
              kPairs>(to, {row, active ? half : 0, member}, seen, make, [&](int64_t c) -> TwoPacks<P> {
      return {load_pack<T, kSize>(a.dgate_up, start + c), load_pack<T, kSize>(a.dgate_up, start + half + c)};
    });
  } else {
    for (int64_t c = member; active && c < half; c += kTeam) make(0, c);
    __syncthreads();  // a group's packs are now another thread's
    auto written = [&](int64_t c) { return load_pack<T, kSize>(a.dgate_up, start + c); };
    write_row<kFormat, kGranularity, kTeam, kPairs>(
        to, {row, active ? 2 * half : 0, member}, seen, [&](int, int64_t c) { return written(c); }, written);
  }
  report(to, seen);
}

template <class T, DType kFormat, Granularity kGranularity, bool kWhole>
void start(Stream& stream, const Arguments<T>& a, const RowTargets& to) {
  auto rows_per_block = [&]<int kBlock, int kTeam>() {
    launch("swiglu_backward_quantize", stream,
           {.grid = grid_of(ceil_div(to.rows, kBlock / kTeam)), .block = kBlock},
           swiglu_backward_kernel<T, kFormat, kGranularity, kWhole, kBlock, kTeam>, a, to);
  };
  const int64_t kept = int64_t{kPackSize<T>} * kPairs, half = to.cols / 2;  // kept by a thread
  if (half <= 32 * kept) return rows_per_block.template operator()<256, 32>();
  // Only scales per row keep a row in registers.
  if constexpr (kGranularity == Granularity::row) {
    if (half > 256 * kept) return rows_per_block.template operator()<512, 512>();
  }
  rows_per_block.template operator()<256, 256>();
}

}  // namespace

void swiglu_backward_quantize(Stream& stream, const SwigluBackwardQuantize& q) {
  const SwigluBackward& b = q.swiglu;
  check_aligned("swiglu_backward_quantize", b.dout, b.gate_up, b.dgate_up, b.out, q.output.out.codes);
  dispatch_float(b.dout.dtype, "swiglu_backward_quantize", [&]<class Host>() {
    using T = Element<Host>;
    const Arguments<T> a{static_cast<const T*>(b.dout.data), static_cast<const T*>(b.gate_up.data),
                         static_cast<T*>(b.dgate_up.data), static_cast<T*>(b.out.data)};
    dispatch_row_output(q.output, [&]<DType kFormat, Granularity kGranularity>() {
      const RowTargets to = row_targets(q.output);
      if (kGranularity == Granularity::row || b.dout.cols() % 128 == 0)
        return start<T, kFormat, kGranularity, true>(stream, a, to);
      if constexpr (kGranularity != Granularity::row) start<T, kFormat, kGranularity, false>(stream, a, to);
    });
  });
}

}  // namespace ottava::fp8::cuda
