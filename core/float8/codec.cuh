#pragma once

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/float8/formats.h"
#include "core/float8/granularity.h"

// FP8 in kernels, sixteen elements at a time: the bits of core/float8/formats.h, made by the conversion
// instructions of sm_89 (on older GPUs by cuda_fp8.h's arithmetic).
namespace ottava::fp8::cuda {

using namespace ottava::cuda;

template <DType kFormat>
inline constexpr float kMax = kFormat == DType::e4m3 ? 448.0f : 57344.0f;
/// Bits of the smallest magnitude that would round past kMax.
template <DType kFormat>
inline constexpr uint32_t kOverflowBits = kFormat == DType::e4m3 ? 0x43e80001u : 0x47700000u;
template <DType kFormat>
inline constexpr __nv_fp8_interpretation_t kInterpretation = kFormat == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;

/// Calls body.operator()<DType::e4m3>() or body.operator()<DType::e5m2>().
template <class Body>
void dispatch_format(DType format, Body&& body) {
  if (format == DType::e4m3) {
    body.template operator()<DType::e4m3>();
  } else {
    body.template operator()<DType::e5m2>();
  }
}

/// Sixteen neighbouring values to be quantized, as bf16, two to a word, the first in the low half.
struct Sixteen {
  uint32_t pairs[8];
};
/// Loads the first `valid` values (at most 16, perhaps none) from p, and zeros for the rest. `wide` promises
/// that valid is either 16 or less than 1, and that p is aligned to 16 bytes.
template <class T>
__device__ __forceinline__ Sixteen load_sixteen(const T* p, int64_t valid, bool wide) {
  Sixteen x{};
  if (wide) {
    if (valid <= 0) return x;
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const auto words = load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(p), k);
#pragma unroll
        for (int i = 0; i < 4; ++i) x.pairs[k * 4 + i] = words.values[i];
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto values = load_pack<T, 4>(p, k);
        x.pairs[k * 2] = pack_bf16(values[0], values[1]);
        x.pairs[k * 2 + 1] = pack_bf16(values[2], values[3]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float low = 2 * i < valid ? to_float(p[2 * i]) : 0,
                  high = 2 * i + 1 < valid ? to_float(p[2 * i + 1]) : 0;
      x.pairs[i] = pack_bf16(low, high);
    }
  }
  return x;
}

/// The largest magnitudes of two pairs, and the bits of either half as a float. Unsigned comparison keeps a
/// NaN, as in core/cuda/reduce.cuh.
__device__ __forceinline__ uint32_t max_of_pairs(uint32_t a, uint32_t b) {
  return __vmaxu2(a & 0x7fff7fffu, b & 0x7fff7fffu);
}
__device__ __forceinline__ uint32_t bits_of_low(uint32_t pair) { return pair << 16 & 0x7fffffffu; }
__device__ __forceinline__ uint32_t bits_of_high(uint32_t pair) { return pair & 0x7fff0000u; }
__device__ __forceinline__ uint32_t largest_bits(const Sixteen& x) {
  uint32_t pair = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) pair = max_of_pairs(pair, x.pairs[i]);
  return max(bits_of_low(pair), bits_of_high(pair));
}

/// Elements that quantizing lost, as Quantize::counters defines them.
struct Losses {
  uint32_t underflow, saturation;
};
/// Adds the losses of the whole block to the counters. Every thread of the block calls it, once. All blocks
/// share the two addresses, where additions wait for each other. Where every warp had something to add, which
/// training never has, counting took a fifth of the time of a quantization (tests/gpu/README.md).
__device__ __forceinline__ void add_losses(unsigned long long* counters, Losses seen) {
  if (!counters || !__syncthreads_or(static_cast<int>(seen.underflow | seen.saturation))) return;
  OTTAVA_SHARED(Losses, of_warps, [32]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    seen.underflow += __shfl_xor_sync(kAllLanes, seen.underflow, offset);
    seen.saturation += __shfl_xor_sync(kAllLanes, seen.saturation, offset);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = seen;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    seen.underflow += of_warps[warp].underflow;
    seen.saturation += of_warps[warp].saturation;
  }
  if (seen.underflow) atomicAdd(counters + 1, seen.underflow);
  if (seen.saturation) atomicAdd(counters + 2, seen.saturation);
}

using Codes = Pack<uint32_t, 4>;

/// Two codes, the first in the low byte, of x times scale.
template <DType kFormat>
__device__ __forceinline__ uint32_t encode_pair(float2 x, float scale) {
  return __nv_cvt_float2_to_fp8x2({x.x * scale, x.y * scale}, __NV_SATFINITE, kInterpretation<kFormat>);
}
/// Four codes, of two pairs of bf16.
template <DType kFormat>
__device__ __forceinline__ uint32_t encode_four(uint32_t low_pair, uint32_t high_pair, float scale) {
  const auto codes = [&](uint32_t pair) {
    return encode_pair<kFormat>({__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}, scale);
  };
  return codes(low_pair) | codes(high_pair) << 16;
}

/// Adds what four codes lost, whose values are two pairs of bf16. Four at a time in one register: one by one,
/// counting takes more instructions than encoding. Only a code of zero can have lost its value, and only one
/// of the largest magnitude can be saturated: few are either.
template <DType kFormat>
__device__ __forceinline__ void count_losses(uint32_t codes, uint32_t low_pair, uint32_t high_pair,
                                             float scale, Losses& seen) {
  constexpr uint32_t kEachByte = 0x01010101u, kHighBits = 0x80 * kEachByte;
  constexpr uint32_t kLargestCode = kFormat == DType::e4m3 ? 0x7e : 0x7b;
  const uint32_t magnitudes = codes & ~kHighBits;
  const uint32_t nonzero_codes = magnitudes + 0x7f * kEachByte,
                 largest_codes = magnitudes + (0x80 - kLargestCode) * kEachByte;
  if (((~nonzero_codes | largest_codes) & kHighBits) == 0) return;
  // The high bit of a half, or of a byte, says whether the rest of it is not zero.
  const auto nonzero_halves = [](uint32_t pair) { return (pair & 0x7fff7fffu) + 0x7fff7fffu; };
  const uint32_t nonzero_values =
      __byte_perm(nonzero_halves(low_pair), nonzero_halves(high_pair), 0x7531) & kHighBits;
  seen.underflow += static_cast<uint32_t>(__popc(nonzero_values & ~nonzero_codes));
  if ((largest_codes & kHighBits) == 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = i < 2 ? low_pair : high_pair;
    const float x = __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
    seen.saturation += abs_bits(x * scale) >= kOverflowBits<kFormat>;
  }
}

/// Calls body(j, codes of column j) for four rows of four codes.
template <class Body>
__device__ __forceinline__ void for_each_column(const uint32_t (&rows)[4], Body&& body) {
  const uint32_t low_01 = __byte_perm(rows[0], rows[1], 0x5140),
                 low_23 = __byte_perm(rows[2], rows[3], 0x5140);
  const uint32_t high_01 = __byte_perm(rows[0], rows[1], 0x7362),
                 high_23 = __byte_perm(rows[2], rows[3], 0x7362);
  body(0, __byte_perm(low_01, low_23, 0x5410));
  body(1, __byte_perm(low_01, low_23, 0x7632));
  body(2, __byte_perm(high_01, high_23, 0x5410));
  body(3, __byte_perm(high_01, high_23, 0x7632));
}

/// Sixteen codes; `wide` and `valid` as for load_sixteen.
__device__ __forceinline__ void store_codes(uint8_t* p, const Codes& codes, int64_t valid, bool wide) {
  if (wide) {
    if (valid > 0) store_pack(reinterpret_cast<uint32_t*>(p), 0, codes);
    return;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (i < valid) p[i] = static_cast<uint8_t>(codes.values[i / 4] >> i % 4 * 8);
  }
}
__device__ __forceinline__ Codes load_codes(const uint8_t* p, int64_t valid, bool wide) {
  Codes codes{};
  if (wide) return valid > 0 ? load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(p), 0) : codes;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (i < valid) codes.values[i / 4] |= static_cast<uint32_t>(p[i]) << i % 4 * 8;
  }
  return codes;
}

/// The scale of a group; reports an amax that is not finite.
template <DType kFormat>
__device__ __forceinline__ Scale scale_of_group(uint32_t amax_bits, ScaleRounding rounding,
                                                uint32_t* non_finite) {
  const Scale scale = scale_from_amax(amax_bits, kMax<kFormat>, rounding);
  if (!scale.finite && non_finite) atomicMax(non_finite, 1u);
  return scale;
}
/// Stores an inverse scale in its granularity's type.
template <Granularity kGranularity>
__device__ __forceinline__ void store_inverse(void* inverses, int64_t index, float inverse) {
  if constexpr (kGranularity == Granularity::block_1x32) {
    static_cast<uint8_t*>(inverses)[index] = encode_e8m0(inverse);
  } else {
    static_cast<float*>(inverses)[index] = inverse;
  }
}
/// Stores a zero where inverse scales have padding.
template <Granularity kGranularity>
__device__ __forceinline__ void store_padding(void* inverses, int64_t index) {
  if constexpr (kGranularity == Granularity::block_1x32) {
    static_cast<uint8_t*>(inverses)[index] = 0;
  } else {
    static_cast<float*>(inverses)[index] = 0;
  }
}

}  // namespace ottava::fp8::cuda
