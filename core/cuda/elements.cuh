#pragma once

#include "core/cuda/gpu.h"
#include "core/dtype.h"

// Elements in memory and in registers: float and bf16, one at a time or 16 bytes at once.
namespace ottava::cuda {

/// The device type of a host element type.
template <class T>
struct DeviceElement {
  using type = T;
};
template <>
struct DeviceElement<bf16> {
  using type = __nv_bfloat16;
};

/// dispatch_float() with the device's type of T.
template <class F>
void dispatch_element(DType dtype, std::string_view where, F&& f) {
  dispatch_float(dtype, where, [&]<class T>() { f.template operator()<typename DeviceElement<T>::type>(); });
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Two floats as a pair of bf16, the first in the low half: the element order of mma fragments.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

/// kSize neighbouring elements, moved by one instruction or, if larger, 16 bytes at a time. Not 32, which
/// sm_100 could move at once: rows_are_aligned() guarantees only 16.
template <class T, int kSize>
struct alignas(kSize * sizeof(T) < 16 ? kSize * sizeof(T) : 16) Pack {
  T values[kSize];

  __device__ __forceinline__ float operator[](int i) const { return to_float(values[i]); }
  __device__ __forceinline__ void set(int i, float x) { values[i] = from_float<T>(x); }
};
static_assert(alignof(Pack<float, 8>) == 16 && alignof(Pack<__nv_bfloat16, 4>) == 8);
/// Number of elements in 16 bytes.
template <class T>
inline constexpr int kPackSize = static_cast<int>(16 / sizeof(T));

template <class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> load_pack(const T* p, int64_t index) {
  return reinterpret_cast<const Pack<T, kSize>*>(p)[index];
}
template <class T, int kSize>
__device__ __forceinline__ void store_pack(T* p, int64_t index, const Pack<T, kSize>& pack) {
  reinterpret_cast<Pack<T, kSize>*>(p)[index] = pack;
}

/// The elements of a pack as floats, and floats rounded to a pack. Pairs of bf16 take one instruction for
/// each element on the way in and one for both on the way out; one by one they take up to two and three.
template <class T, int kSize>
__device__ __forceinline__ void unpack(const Pack<T, kSize>& pack, float (&x)[kSize]) {
  if constexpr (sizeof(T) == 2 && kSize % 2 == 0) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(pack.values);
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      x[i] = __uint_as_float(pairs[i / 2] << 16);
      x[i + 1] = __uint_as_float(pairs[i / 2] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = pack[i];
  }
}
template <class T, int kSize>
__device__ __forceinline__ Pack<T, kSize> packed(const float (&x)[kSize]) {
  Pack<T, kSize> pack;
  if constexpr (sizeof(T) == 2 && kSize % 2 == 0) {
    auto* pairs = reinterpret_cast<uint32_t*>(pack.values);
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[i], x[i + 1]);
      pairs[i / 2] = reinterpret_cast<const uint32_t&>(pair);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) pack.set(i, x[i]);
  }
  return pack;
}

/// True if every row of every tensor starts at a 16-byte boundary, so that rows can be moved in packs.
template <class... Tensors>
bool rows_are_aligned(int64_t row_bytes, const Tensors&... tensors) {
  return row_bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(tensors.data) % 16 == 0) && ...);
}

/// Calls f.operator()<kSize>() with the number of elements of rows of `cols` that are moved at once: 16 bytes
/// of them if all rows are aligned, else one.
template <class T, class F, class... Tensors>
void dispatch_pack(int64_t cols, F&& f, const Tensors&... tensors) {
  if (rows_are_aligned(cols * int64_t{sizeof(T)}, tensors...)) return f.template operator()<kPackSize<T>>();
  f.template operator()<1>();
}

}  // namespace ottava::cuda
