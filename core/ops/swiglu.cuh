#pragma once

#include "core/cuda/elements.cuh"

namespace ottava::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

/// silu(gate) * up of a pack, as stored, for swiglu and whatever is fused with it.
template <class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> swiglu_of(const Pack<T, kSize>& gate, const Pack<T, kSize>& up) {
  Pack<T, kSize> out;
#pragma unroll
  for (int i = 0; i < kSize; ++i) out.set(i, gate[i] * sigmoid(gate[i]) * up[i]);
  return out;
}

/// Both halves of dgate_up, and out, made again from the same values, all as stored.
template <class T, int kSize>
struct SwigluGradient {
  Pack<T, kSize> dgate, dup, out;
};
template <class T, int kSize>
__device__ __forceinline__ SwigluGradient<T, kSize> swiglu_gradient(const Pack<T, kSize>& dout,
                                                                    const Pack<T, kSize>& gate,
                                                                    const Pack<T, kSize>& up) {
  SwigluGradient<T, kSize> to;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float g = gate[i], s = sigmoid(g), silu = g * s;
    to.dgate.set(i, dout[i] * up[i] * (s * fmaf(g, 1.0f - s, 1.0f)));
    to.dup.set(i, dout[i] * silu);
    to.out.set(i, silu * up[i]);
  }
  return to;
}

}  // namespace ottava::cuda
