#pragma once

#include "core/cuda/elements.cuh"

namespace ottava::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

/// silu(gate) * up of a pack as it is stored: for swiglu and whatever is fused with it.
template <class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> swiglu_of(const Pack<T, kSize>& gate, const Pack<T, kSize>& up) {
  Pack<T, kSize> out;
#pragma unroll
  for (int i = 0; i < kSize; ++i) out.set(i, gate[i] * sigmoid(gate[i]) * up[i]);
  return out;
}

}  // namespace ottava::cuda
