#include "core/cuda/reduce.cuh"
#include "core/ops/swiglu.cuh"
#include "core/ops/swiglu_kernels.h"

// Ceiling: memory bandwidth. Forward moves 3 elements per output element (6 bytes in bf16) and does about 20
// FLOPs on them, backward 5 (6 when the output is written again) and 30.
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
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        amax = max(amax, max(abs_bits(gradient.dgate[i]), abs_bits(gradient.dup[i])));
      store_pack(a.dgate_up, gate_at + c, gradient.dgate);
      store_pack(a.dgate_up, up_at + c, gradient.dup);
      if (a.out) store_pack(a.out, half + c, gradient.out);
    } else {
      const P out = swiglu_of(gate, up);
#pragma unroll
      for (int i = 0; i < kSize; ++i) amax = max(amax, abs_bits(out[i]));
      store_pack(a.out, half + c, out);
    }
  }
  raise_amax(a.amax, amax);
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
  dispatch_float(f.out.dtype, "swiglu_forward", [&]<class Host>() {
    using T = Element<Host>;
    const Arguments<T> a{.gate_up = static_cast<const T*>(f.gate_up.data),
                         .out = static_cast<T*>(f.out.data),
                         .amax = static_cast<uint32_t*>(f.amax.data)};
    const int64_t rows = f.out.rows(), cols = f.out.cols();
    if (rows_are_aligned(cols * int64_t{sizeof(T)}, f.gate_up, f.out)) {
      launch_swiglu<T, kPackSize<T>, false>(stream, a, rows, cols);
    } else {
      launch_swiglu<T, 1, false>(stream, a, rows, cols);
    }
  });
}

void swiglu_backward(Stream& stream, const SwigluBackward& b) {
  dispatch_float(b.dout.dtype, "swiglu_backward", [&]<class Host>() {
    using T = Element<Host>;
    const Arguments<T> a{.dout = static_cast<const T*>(b.dout.data),
                         .gate_up = static_cast<const T*>(b.gate_up.data),
                         .dgate_up = static_cast<T*>(b.dgate_up.data),
                         .out = static_cast<T*>(b.out.data),
                         .amax = static_cast<uint32_t*>(b.amax.data)};
    const int64_t rows = b.dout.rows(), cols = b.dout.cols();
    if (rows_are_aligned(cols * int64_t{sizeof(T)}, b.dout, b.gate_up, b.dgate_up, b.out)) {
      launch_swiglu<T, kPackSize<T>, true>(stream, a, rows, cols);
    } else {
      launch_swiglu<T, 1, true>(stream, a, rows, cols);
    }
  });
}

}  // namespace ottava::cuda
