#pragma once

#include "core/float8/codec_kernels.h"
#include "core/float8/row_output.h"

namespace ottava::cpu {

/// Makes FP8 codes row by row on the CPU: for quantize() and for operations that make the row as well, while
/// it is in the cache.
class RowQuantizer {
 public:
  /// Of a matrix of x's dtype and shape, whose data may be null. Arguments are checked; `output` may have any
  /// granularity and may lack `out`, if quantize_row() and its like are not called. `format` is e4m3 or e5m2.
  /// A tensor's inverse scale is stored here.
  RowQuantizer(const fp8::RowOutput& output, const Tensor& x, DType format);

  /// Codes and inverse scales of one row, whose values of x's dtype are at `values`. Threads may share the
  /// object. If the next row lies `ahead` bytes on, it is fetched meanwhile.
  void quantize_row(int64_t row, const void* values, fp8::QuantizeCounts* counts, int64_t ahead = 0) const;
  /// The same for elements [col, col + n) of a row whose groups do not cross these limits and are at most
  /// kMostBlocks.
  void quantize_blocks(int64_t row, int64_t col, const bf16* values, int64_t n, fp8::QuantizeCounts* counts,
                       int64_t ahead) const;
  static constexpr int64_t kMostBlocks = 128;
  /// The same for granularity 1x128 and a few rows, at most sixteen, whose values lie `stride` elements
  /// apart: their amaxes are reduced together and their inverses lie side by side. At most kMostTall elements
  /// of each row.
  void quantize_tall(int64_t row, int64_t rows, int64_t col, const bf16* values, int64_t stride, int64_t n,
                     fp8::QuantizeCounts* counts, int64_t ahead) const;
  static constexpr int64_t kTallRows = 16, kMostTall = 512;

  /// Scales and inverses of n groups; reports an amax that is not finite and returns the largest. Arrays have
  /// room for n rounded up to sixteens. Exponents, for granularity 1x32, are the inverses as stored.
  uint32_t scales_of(const uint32_t* amax, int64_t n, float* scales, float* inverses,
                     uint8_t* exponents = nullptr) const;
  fp8::Scale scale_of(uint32_t amax) const;
  /// Raises `largest`, if it is wanted.
  void note_largest(uint32_t amax) const;
  bool has_powers_of_two() const { return a_.rounding == fp8::ScaleRounding::down_to_power_of_two; }
  /// No element of at most this amax is out of the format's range once it is scaled.
  bool is_in_range(uint32_t amax, float scale) const;
  /// Stores the inverses of the n groups of `out` that follow each other along a row from (row, col) on.
  void set_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const;
  const fp8::Scale& tensor_scale() const { return shared_; }  ///< granularity tensor
  /// Where losses are counted; null when not asked for.
  fp8::QuantizeCounts* counts_or_null(fp8::QuantizeCounts& counts) const {
    return a_.counters.empty() ? nullptr : &counts;
  }
  /// Adds one thread's losses to the counters.
  void add(const fp8::QuantizeCounts& counts) const;
  /// Once per matrix.
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
