#pragma once

#include "core/cuda/elements.cuh"

// Reductions in a fixed order: the same bits every time.
namespace ottava::cuda {

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}
__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    uint32_t other = __shfl_xor_sync(kAllLanes, x, offset);
    x = x < other ? other : x;
  }
  return x;
}

/// The sum over kThreads neighbouring threads, returned to all of them. Every thread of the block calls it;
/// kThreads is 32 or the block's size. `turn` counts the block's calls: the readers of one call are done when
/// the barrier of the next lets the call after that write where they read.
template <int kThreads>
__device__ __forceinline__ float team_sum(float x, unsigned turn = 0) {
  x = warp_sum(x);
  if constexpr (kThreads > 32) {
    OTTAVA_SHARED(float, partials, [2][kThreads / 32]);
    float* partial = partials[turn % 2];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) x += partial[i];
  }
  return x;
}

/// The same for the maximum.
template <int kThreads>
__device__ __forceinline__ uint32_t team_max(uint32_t x, unsigned turn = 0) {
  x = warp_max(x);
  if constexpr (kThreads > 32) {
    OTTAVA_SHARED(uint32_t, partials, [2][kThreads / 32]);
    uint32_t* partial = partials[turn % 2];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) x = x < partial[i] ? partial[i] : x;
  }
  return x;
}

/// Bits of |x|: ordered like the value, NaN above everything.
__device__ __forceinline__ uint32_t abs_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }
/// The largest abs_bits() in a pack.
template <class T, int kSize>
__device__ __forceinline__ uint32_t largest_bits(const Pack<T, kSize>& pack) {
  uint32_t largest = 0;
  if constexpr (sizeof(T) == 2 && kSize % 2 == 0) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(pack.values);
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) largest = __vmaxu2(largest, pairs[i] & 0x7fff7fffu);
    largest = max(largest << 16, largest & 0xffff0000u);
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) largest = max(largest, abs_bits(pack[i]));
  }
  return largest;
}

/// Raises *amax to the largest `bits` of the block; `amax` may be null. Every thread of the block calls it,
/// once. Since all blocks access the same address, a block does so once, and mostly only reads: past the
/// first few rows the maximum rarely rises.
__device__ __forceinline__ void raise_amax(uint32_t* amax, uint32_t bits) {
  if (!amax) return;
  OTTAVA_SHARED(uint32_t, largest, [32]);
  bits = warp_max(bits);
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = bits;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) bits = max(bits, largest[warp]);
  if (load_relaxed(amax) < bits) atomicMax(amax, bits);
}

}  // namespace ottava::cuda
