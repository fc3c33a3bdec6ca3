#include "core/cuda/reduce.cuh"
#include "core/cuda/row_part.cuh"
#include "core/float8/row_output.cuh"
#include "core/ops/swiglu.cuh"
#include "core/ops/swiglu_kernels.h"

// Ceiling: memory bandwidth. Forward moves 3 elements per output element (6 bytes in bf16) and does about 20
// FLOPs on them, backward 5 (6 when the output is written again) and 30. With FP8 outputs forward moves 5
// bytes per bf16 output element in place of the 9 of the operation and a quantization, backward 12 (14) in
// place of 16 (18); rows that registers do not hold are read again from the L2 cache.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 128, kPacksPerThread = 2;

template <class T>
struct Arguments {
  const T *dout, *gate_up;  // dout: backward only
  T *dgate_up, *out;        // dgate_up may be gate_up; backward writes out only if it is given
  uint32_t* amax;
  int64_t packs;  // per row of F elements
  unsigned blocks_per_row;
};

template <class T>
Arguments<T> arguments(const SwigluForward& f) {
  return {.gate_up = pointer<T>(f.gate_up), .out = pointer<T>(f.out), .amax = pointer<uint32_t>(f.amax)};
}
template <class T>
Arguments<T> arguments(const SwigluBackward& b) {
  return {.dout = pointer<T>(b.dout),
          .gate_up = pointer<T>(b.gate_up),
          .dgate_up = pointer<T>(b.dgate_up),
          .out = pointer<T>(b.out),
          .amax = pointer<uint32_t>(b.amax)};
}

// A block covers kBlock * kPacksPerThread packs of one row.
template <class T, int kSize, bool kBackward>
__global__ void __launch_bounds__(kBlock) swiglu_kernel(Arguments<T> a) {
  using P = Pack<T, kSize>;
  const int64_t row = blockIdx.x / a.blocks_per_row;
  const int64_t first = int64_t{blockIdx.x % a.blocks_per_row} * (kBlock * kPacksPerThread) + threadIdx.x;
  const int64_t half = row * a.packs, gate_at = 2 * half, up_at = gate_at + a.packs;
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kPacksPerThread; ++k) {
    const int64_t c = first + k * kBlock;
    if (c >= a.packs) continue;
    const P gate = load_pack<T, kSize>(a.gate_up, gate_at + c),
            up = load_pack<T, kSize>(a.gate_up, up_at + c);
    if constexpr (kBackward) {
      const P dout = load_pack<T, kSize>(a.dout, half + c);
      const auto gradient = swiglu_gradient(dout, gate, up);
      amax = max(amax, max(largest_bits(gradient.dgate), largest_bits(gradient.dup)));
      store_pack(a.dgate_up, gate_at + c, gradient.dgate);
      store_pack(a.dgate_up, up_at + c, gradient.dup);
      if (a.out) store_pack(a.out, half + c, gradient.out);
    } else {
      const P out = swiglu_of(gate, up);
      amax = max(amax, largest_bits(out));
      store_pack(a.out, half + c, out);
    }
  }
  raise_amax(a.amax, amax);
}

template <DType kFormat, fp8::Granularity kGranularity, class Team>
__global__ void __launch_bounds__(Team::kBlock, Team::kBlocks)
    forward_float8_kernel(Arguments<__nv_bfloat16> a, fp8::cuda::RowTargets to) {
  using T = __nv_bfloat16;
  constexpr int kSize = kPackSize<T>, kTeam = Team::kTeam;
  const int64_t row = blockIdx.x * int64_t{Team::kBlock / kTeam} + threadIdx.x / kTeam,
                packs = to.cols / kSize;
  const RowPart part{row, row < to.rows ? packs : 0, static_cast<int>(threadIdx.x % kTeam)};
  fp8::cuda::write_row<kFormat, kGranularity, kTeam, Team::kKept>(to, part, [&](int, int64_t c) {
    const int64_t gate = 2 * row * packs + c;
    const auto out =
        swiglu_of(load_pack<T, kSize>(a.gate_up, gate), load_pack<T, kSize>(a.gate_up, gate + packs));
    if (a.out) store_pack(a.out, row * packs + c, out);
    return out;
  });
}

/// kWhole: groups of scales end where the first half does, so that both halves are made together.
template <DType kFormat, fp8::Granularity kGranularity, bool kWhole, class Team>
__global__ void __launch_bounds__(Team::kBlock, Team::kBlocks)
    backward_float8_kernel(Arguments<__nv_bfloat16> a, fp8::cuda::RowTargets to) {
  using T = __nv_bfloat16;
  constexpr int kSize = kPackSize<T>;
  using P = Pack<T, kSize>;
  using Both = fp8::cuda::TwoPacks<P>;
  constexpr int kTeam = Team::kTeam, kThreads = Team::kBlock, kPairs = Team::kKept;
  const int64_t row = blockIdx.x * int64_t{kThreads / kTeam} + threadIdx.x / kTeam;
  const int64_t half = to.cols / 2 / kSize, start = 2 * row * half;
  const int member = static_cast<int>(threadIdx.x % kTeam);
  const bool active = row < to.rows;
  auto make = [&](int, int64_t c) -> Both {
    const auto made = swiglu_gradient(load_pack<T, kSize>(a.dout, row * half + c),
                                      load_pack<T, kSize>(a.gate_up, start + c),
                                      load_pack<T, kSize>(a.gate_up, start + half + c));
    store_pack(a.dgate_up, start + c, made.dgate);
    store_pack(a.dgate_up, start + half + c, made.dup);
    if (a.out) store_pack(a.out, row * half + c, made.out);
    return {made.dgate, made.dup};
  };
  auto written = [&](int64_t c) { return load_pack<T, kSize>(a.dgate_up, start + c); };
  fp8::cuda::RowsSeen seen;
  if constexpr (kWhole) {
    fp8::cuda::write_row<kFormat, kGranularity, kTeam, kPairs>(to, {row, active ? half : 0, member}, seen,
                                                               make, [&](int64_t c) -> Both {
                                                                 return {written(c), written(half + c)};
                                                               });
  } else {
    for (int64_t c = member; active && c < half; c += kTeam) make(0, c);
    __syncthreads();  // a group's packs are now another thread's
    fp8::cuda::write_row<kFormat, kGranularity, kTeam, kPairs>(
        to, {row, active ? 2 * half : 0, member}, seen, [&](int, int64_t c) { return written(c); }, written);
  }
  fp8::cuda::report(to, seen);
}

void forward_float8(Stream& stream, const SwigluForward& f) {
  fp8::cuda::check_aligned(name_of(f), f.gate_up, f.out, f.float8.out.codes);
  fp8::cuda::dispatch_row_output(f.float8, [&]<DType kFormat, fp8::Granularity kGranularity>() {
    const auto to = fp8::cuda::row_targets(f.float8);
    auto start = [&]<class Team>(Team) {
      launch(name_of(f), stream, Team::shape(to.rows), forward_float8_kernel<kFormat, kGranularity, Team>,
             arguments<__nv_bfloat16>(f), to);
    };
    if (to.cols <= 2048) return start(RowTeam<32, 256, 8, 2>());  // a warp has the row in its registers
    if constexpr (fp8::cuda::kMeasuresRow<kGranularity>) {
      if (to.cols > 8192) return start(RowTeam<512, 512, 4, 2>());
    }
    start(RowTeam<256, 256, 8, 2>());
  });
}

void backward_float8(Stream& stream, const SwigluBackward& b) {
  using fp8::Granularity;
  fp8::cuda::check_aligned(name_of(b), b.dout, b.gate_up, b.dgate_up, b.out, b.float8.out.codes);
  fp8::cuda::dispatch_row_output(b.float8, [&]<DType kFormat, Granularity kGranularity>() {
    const auto to = fp8::cuda::row_targets(b.float8);
    auto start = [&]<bool kWhole, class Team>(Team) {
      launch(name_of(b), stream, Team::shape(to.rows),
             backward_float8_kernel<kFormat, kGranularity, kWhole, Team>, arguments<__nv_bfloat16>(b), to);
    };
    const int64_t half = to.cols / 2;
    auto by_length = [&]<bool kWhole>() {
      const auto as = [&](auto shape) { start.template operator()<kWhole>(shape); };
      if (half <= 1024) return as(RowTeam<32, 256, 4, 2>());
      if constexpr (!fp8::cuda::kMeasuresRow<kGranularity>) {
        as(RowTeam<256, 256, 2, 4>());
      } else if (half <= 4096) {
        as(RowTeam<256, 256, 4, 2>());
      } else {
        // What a block has just written is read again from the L2 cache sooner than registers for all of it,
        // with one block on an SM, let the next row begin.
        as(RowTeam<512, 512, 1, 2>());
      }
    };
    if constexpr (constexpr int64_t kGroup = fp8::cuda::kGroup<kGranularity>; kGroup > 1) {
      if (half % kGroup != 0) return by_length.template operator()<false>();
    }
    by_length.template operator()<true>();
  });
}

template <class T, int kSize, bool kBackward>
void launch_swiglu(Stream& stream, Arguments<T> a, int64_t rows, int64_t cols) {
  constexpr int64_t kPerBlock = kBlock * kPacksPerThread;
  a.packs = cols / kSize;
  a.blocks_per_row = static_cast<unsigned>((a.packs + kPerBlock - 1) / kPerBlock);
  launch(kBackward ? "swiglu_backward" : "swiglu_forward", stream,
         {.grid = grid_of(rows * a.blocks_per_row), .block = kBlock}, swiglu_kernel<T, kSize, kBackward>, a);
}

}  // namespace

void swiglu_forward(Stream& stream, const SwigluForward& f) {
  if (!f.float8.empty()) return forward_float8(stream, f);
  dispatch_element(f.gate_up.dtype, "swiglu_forward", [&]<class T>() {
    const int64_t rows = f.out.rows(), cols = f.out.cols();
    dispatch_pack<T>(
        cols, [&]<int kSize>() { launch_swiglu<T, kSize, false>(stream, arguments<T>(f), rows, cols); },
        f.gate_up, f.out);
  });
}

void swiglu_backward(Stream& stream, const SwigluBackward& b) {
  if (!b.float8.empty()) return backward_float8(stream, b);
  dispatch_element(b.dout.dtype, "swiglu_backward", [&]<class T>() {
    const int64_t rows = b.dout.rows(), cols = b.dout.cols();
    dispatch_pack<T>(
        cols, [&]<int kSize>() { launch_swiglu<T, kSize, true>(stream, arguments<T>(b), rows, cols); },
        b.dout, b.gate_up, b.dgate_up, b.out);
  });
}

}  // namespace ottava::cuda
