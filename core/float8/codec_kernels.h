#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/cpu/isa.h"
#include "core/float8/formats.h"

// CPU kernels of the FP8 codec, each serial over a piece of a matrix of bf16 values: f32 is rounded first,
// into a buffer.
namespace ottava::fp8 {

/// Amaxes are bits of max |x|, in which a NaN survives.
struct AmaxKernels {
  void (*round)(const float* x, int64_t n, bf16* y);
  /// Of each `block` elements, the last of which may be fewer. Overwrites; with more than one block, the
  /// array has room for their number rounded up to sixteens.
  void (*blocks)(const bf16* x, int64_t n, int64_t block, uint32_t* amax);
  /// Of the first n elements of `count` rows, `stride` elements apart, at most sixteen: so many are written,
  /// zeros for the rest.
  void (*rows)(const bf16* x, int64_t stride, int64_t count, int64_t n, uint32_t* amax);
  /// Of columns; rows lie `stride` elements apart. Overwrites amax [cols] and returns the largest.
  uint32_t (*columns)(const bf16* x, int64_t stride, cpu::Rows rows, uint32_t* amax);
  /// scale_from_amax of n groups, for a format with this largest number. Returns the largest amax. Arrays
  /// have room for n rounded up to sixteens, which is read and written. `exponents`, if not null, gets the
  /// inverses, powers of two, as UE8M0.
  uint32_t (*scales)(const uint32_t* amax, int64_t n, float max, bool power_of_two, float* scales,
                     float* inverses, uint8_t* exponents);
};

struct QuantizeCounts {
  int64_t underflow = 0, saturation = 0;
};

/// n elements of a row; every `block` of them, a power of two from 32 on, share a scale.
struct EncodeRow {
  const bf16* x = nullptr;
  int64_t n = 0, block = 0;
  const float* scales = nullptr;
  int64_t scales_stride = 1;
  bool in_range =
      false;  ///< no element times its scale is infinite, NaN or would be rounded past the largest number
  bool powers_of_two = false;  ///< all scales are
  uint8_t* out = nullptr;
  QuantizeCounts* counts = nullptr;  ///< added to, unless null
  int64_t ahead = 0;                 ///< bytes from x to what is read next: fetched meanwhile. 0: nothing
};
/// rows x cols elements with scales of their columns; every `band` rows, a multiple of 32, have scales of
/// their own. Written as cols x rows codes.
struct EncodeTransposed {
  const bf16* x = nullptr;
  int64_t stride = 0, rows = 0, cols = 0, band = 0;
  const float* scales = nullptr;  ///< a row of them for each band
  int64_t scales_stride = 0;
  bool in_range = false, powers_of_two = false;  ///< as in EncodeRow
  uint8_t* to = nullptr;
  int64_t to_stride = 0;
  bool past_caches = false;  ///< stored directly to memory where lines allow it: more than caches hold
  QuantizeCounts* counts = nullptr;
};
struct EncodeKernel {
  void (*row)(const EncodeRow&);
  void (*transposed)(const EncodeTransposed&);
};
/// Of both formats.
struct EncodeKernels {
  EncodeKernel e4m3, e5m2;
  const EncodeKernel& operator[](DType format) const { return format == DType::e5m2 ? e5m2 : e4m3; }
};

struct DecodeKernels {
  /// y = codes times the inverse of each `block`.
  cpu::FloatKernel<void(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, bool e5m2,
                        void* y)>
      decode;
  /// [rows, cols] to [cols, rows]; strides in bytes.
  void (*transpose)(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride,
                    cpu::Rows block);
};

}  // namespace ottava::fp8

OTTAVA_CPU_KERNELS(ottava::fp8::AmaxKernels, amax_kernels)
OTTAVA_CPU_KERNELS_AND_FP16(ottava::fp8::EncodeKernels, encode_kernels)
OTTAVA_CPU_KERNELS(ottava::fp8::DecodeKernels, decode_kernels)
