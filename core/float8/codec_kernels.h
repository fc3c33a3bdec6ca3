#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/cpu/isa.h"
#include "core/float8/formats.h"

// CPU kernels of the FP8 codec, each serial over a piece of a matrix of bf16 values. f32 values are rounded
// into a buffer first.
namespace ottava::fp8 {

/// Amaxes are the bits of max |x|, in which a NaN survives.
struct AmaxKernels {
  void (*round)(const float* x, int64_t n, bf16* y);
  /// One amax for each `block` elements, of which the last block may have fewer. Overwrites `amax`, which
  /// with more than one block has room for their number rounded up to a multiple of 16.
  void (*blocks)(const bf16* x, int64_t n, int64_t block, uint32_t* amax);
  /// One amax for the first n elements of each of `count` rows (at most 16), `stride` elements apart. Always
  /// writes 16 amaxes, zeros for rows that do not exist.
  void (*rows)(const bf16* x, int64_t stride, int64_t count, int64_t n, uint32_t* amax);
  /// One amax per column; rows lie `stride` elements apart. Overwrites amax [cols] and returns the largest.
  uint32_t (*columns)(const bf16* x, int64_t stride, cpu::Rows rows, uint32_t* amax);
  /// scale_from_amax() of n groups, for a format whose largest number is `max`. Returns the largest amax. All
  /// arrays have room for n rounded up to a multiple of 16, and all of it is read or written. `exponents`, if
  /// not null, receives the inverses, which must be powers of two, as UE8M0.
  uint32_t (*scales)(const uint32_t* amax, int64_t n, float max, bool power_of_two, float* scales,
                     float* inverses, uint8_t* exponents);
};

/// Numbers of elements that quantizing lost, as Quantize::counters defines them.
struct QuantizeCounts {
  int64_t underflow = 0, saturation = 0;
};

/// n elements of a row. Each `block` of them (a power of two, at least 32) share a scale.
struct EncodeRow {
  const bf16* x = nullptr;
  int64_t n = 0, block = 0;
  const float* scales = nullptr;
  int64_t scales_stride = 1;
  /// no element times its scale is infinite, NaN or would be rounded past the largest number
  bool in_range = false;
  bool powers_of_two = false;  ///< all scales are powers of two
  uint8_t* out = nullptr;
  QuantizeCounts* counts = nullptr;  ///< added to, unless null
  int64_t ahead = 0;  ///< bytes from x to what is read next, to be fetched meanwhile; 0: nothing
};
/// rows x cols elements with one scale per column; every `band` rows (a multiple of 32) have scales of their
/// own. Written as cols x rows codes.
struct EncodeTransposed {
  const bf16* x = nullptr;
  int64_t stride = 0, rows = 0, cols = 0, band = 0;
  const float* scales = nullptr;  ///< one row of scales per band
  int64_t scales_stride = 0;
  bool in_range = false, powers_of_two = false;  ///< as in EncodeRow
  uint8_t* to = nullptr;
  int64_t to_stride = 0;
  bool past_caches = false;  ///< more than caches hold: whole lines are stored directly to memory
  QuantizeCounts* counts = nullptr;
};
struct EncodeKernel {
  void (*row)(const EncodeRow&);
  void (*transposed)(const EncodeTransposed&);
};
/// The kernels of both formats.
struct EncodeKernels {
  EncodeKernel e4m3, e5m2;
  const EncodeKernel& operator[](DType format) const { return format == DType::e5m2 ? e5m2 : e4m3; }
};

/// From codes to values, and codes transposed.
struct DecodeKernels {
  /// y = codes times the inverse scale of their `block`.
  cpu::FloatKernel<void(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, bool e5m2,
                        void* y)>
      decode;
  /// Transposes [rows, cols] codes to [cols, rows]; strides in bytes.
  void (*transpose)(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride,
                    cpu::Rows block);
};

}  // namespace ottava::fp8

OTTAVA_CPU_KERNELS(ottava::fp8::AmaxKernels, amax_kernels)
OTTAVA_CPU_KERNELS_AND_FP16(ottava::fp8::EncodeKernels, encode_kernels)
OTTAVA_CPU_KERNELS(ottava::fp8::DecodeKernels, decode_kernels)
