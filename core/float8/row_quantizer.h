#pragma once

#include "core/float8/codec_kernels.h"
#include "core/float8/row_output.h"

namespace ottava::cpu {

/// Makes FP8 codes row by row on the CPU, while a row is in the cache: for quantize(), and for operations
/// that also make the row.
class RowQuantizer {
 public:
  /// For a matrix of x's dtype and shape; x's data may be null. The caller has checked that `output` fits it.
  /// `output` may have any granularity, and may lack `out` if none of the quantize functions is called.
  /// `format` is e4m3 or e5m2. With granularity tensor, this stores the inverse scale.
  RowQuantizer(const fp8::RowOutput& output, const Tensor& x, DType format);

  /// Makes the codes and inverse scales of one row, whose values, of x's dtype, are at `values`. Threads may
  /// share the object. If `ahead` is not 0, what lies that many bytes further on is fetched meanwhile.
  void quantize_row(int64_t row, const void* values, fp8::QuantizeCounts* counts, int64_t ahead = 0) const;
  /// The same for elements [col, col + n) of a row. Groups must not cross these limits, and there are at most
  /// kMostBlocks.
  void quantize_blocks(int64_t row, int64_t col, const bf16* values, int64_t n, fp8::QuantizeCounts* counts,
                       int64_t ahead) const;
  static constexpr int64_t kMostBlocks = 128;
  /// The same for granularity 1x128 and up to kTallRows rows, which lie `stride` elements apart: their amaxes
  /// are reduced together, and their inverses are neighbours in memory. At most kMostTall elements of each
  /// row.
  void quantize_tall(int64_t row, int64_t rows, int64_t col, const bf16* values, int64_t stride, int64_t n,
                     fp8::QuantizeCounts* counts, int64_t ahead) const;
  static constexpr int64_t kTallRows = 16, kMostTall = 512;

  /// Scales and inverses of n groups. Reports an amax that is not finite, and returns the largest. Arrays
  /// have room for n rounded up to a multiple of 16. `exponents`, for granularity 1x32, receives the inverses
  /// as stored.
  uint32_t scales_of(const uint32_t* amax, int64_t n, float* scales, float* inverses,
                     uint8_t* exponents = nullptr) const;
  fp8::Scale scale_of(uint32_t amax) const;
  /// Raises `largest`, if it is wanted.
  void note_largest(uint32_t amax) const;
  bool has_powers_of_two() const { return a_.rounding == fp8::ScaleRounding::down_to_power_of_two; }
  /// True if no element of at most this amax leaves the format's range when scaled.
  bool is_in_range(uint32_t amax, float scale) const;
  /// Stores the inverses of n consecutive groups of `out` along a row, from (row, col) on.
  void set_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const;
  const fp8::Scale& tensor_scale() const { return shared_; }  ///< granularity tensor
  /// `counts`, or null if losses are not to be counted.
  fp8::QuantizeCounts* counts_or_null(fp8::QuantizeCounts& counts) const {
    return a_.counters.empty() ? nullptr : &counts;
  }
  /// Adds one thread's losses to the counters.
  void add(const fp8::QuantizeCounts& counts) const;
  /// Adds the number of elements to the counters; to be called once per matrix.
  void count_elements() const;

 private:
  void set_exponents(int64_t row, int64_t col, int64_t n, const uint8_t* exponents) const;
  void encode(int64_t row, int64_t col, const bf16* values, int64_t n, fp8::EncodeRow how) const;

  fp8::RowOutput a_;
  const DType dtype_;
  const fp8::AmaxKernels& kernels_ = amax_kernels();
  const fp8::Format& format_;
  const fp8::EncodeKernel& encode_;
  const int64_t rows_, cols_, block_;
  const fp8::ScaleLayout layout_;
  fp8::Scale shared_;
};

}  // namespace ottava::cpu
