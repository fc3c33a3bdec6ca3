#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "fp8/quantize.h"

namespace ottava::fp8 {

struct QuantizeCounts {
  int64_t underflow = 0, saturation = 0;
};

inline constexpr int64_t kMostSquares = 32;

/// Pieces of one row of n elements; pointers are of the kernel's element type. `block` elements share a
/// scale, the last block may be short. `e5m2` chooses the format.
struct QuantizeKernels {
  cpu::FloatKernel<void(const void* x, int64_t n, int64_t block, uint32_t* amax)> block_amax;  ///< overwrites
  cpu::FloatKernel<void(const void* x, int64_t n, uint32_t* amax)> column_amax;                ///< raises [n]
  /// Of `rows` rows, `stride` elements apart: the amaxes of columns [0, 128), [128, 256), ... at most kMostSquares of them.
  cpu::FloatKernel<void(const void* x, int64_t stride, cpu::Rows rows, uint32_t* amax)> square_amax;
  /// scale_from_amax of n groups, for a format with this largest number. Returns the largest amax.
  uint32_t (*scales)(const uint32_t* amax, int64_t n, float max, bool power_of_two, float* scales,
                     float* inverses);
  /// Adds to counts unless it is null.
  cpu::FloatKernel<void(const void* x, int64_t n, int64_t block, const float* scales, bool e5m2, uint8_t* out,
                        QuantizeCounts* counts)>
      encode;
  /// One scale per element.
  cpu::FloatKernel<void(const void* x, int64_t n, const float* scales, bool e5m2, uint8_t* out,
                        QuantizeCounts* counts)>
      encode_columns;
  cpu::FloatKernel<void(const uint8_t* codes, int64_t n, int64_t block, const float* inverses, bool e5m2,
                        void* y)>
      decode;
  /// [rows, cols] to [cols, rows]; strides in bytes.
  void (*transpose)(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride,
                    cpu::Rows block);
};

namespace cuda {
void amax(Stream& stream, const Tensor& x, const Tensor& amax);
void column_amax(Stream& stream, const Tensor& x, const Tensor& amax);
void quantize(Stream& stream, const Quantize& args);
/// Inverse scales may be left out: all are 1.
void dequantize(Stream& stream, const Quantized& x, Granularity granularity, const Tensor& y);
void transpose_bytes(Stream& stream, const Tensor& from, const Tensor& to);
void transpose_block_scales(Stream& stream, const Tensor& from, Shape matrix, const Tensor& to);
}  // namespace cuda

}  // namespace ottava::fp8

OTTAVA_CPU_KERNELS(ottava::fp8::QuantizeKernels, quantize_kernels)
