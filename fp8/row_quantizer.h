#pragma once

#include "fp8/quantize_kernels.h"

namespace ottava::cpu {

/// The part of quantize() on the CPU that makes `out` row by row: for quantize() itself and for operations that make the
/// row as well, while it is in the cache. Arguments are checked; x gives shape and dtype, its data may be null.
class RowQuantizer {
 public:
  explicit RowQuantizer(const fp8::Quantize& args);

  /// Bytes and inverse scales of one row, whose values of x's dtype are at `values`. Threads may share the object.
  void quantize_row(int64_t row, const void* values, fp8::QuantizeCounts* counts) const;
  /// The same for elements [col, col + n) of a row whose groups do not cross these limits.
  void quantize_blocks(int64_t row, int64_t col, const void* values, int64_t n,
                       fp8::QuantizeCounts* counts) const;

  /// Scales and inverses of n groups; reports an amax that is not finite.
  void scales_of(const uint32_t* amax, int64_t n, float* scales, float* inverses) const;
  /// Raises `largest`, if it is wanted, by the amaxes of n groups of x.
  void note_largest(const uint32_t* amax, int64_t n) const;
  /// Stores the inverses of the n groups of `out` that follow each other along a row from (row, col) on.
  void set_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const;
  /// Stores the inverses of n groups of `transposed`: those of x's columns [col, col + n) that begin in a row of x.
  void set_turned_inverses(int64_t row, int64_t col, int64_t n, const float* inverses) const;
  float tensor_scale() const { return shared_.scale; }  ///< granularity tensor
  /// Where losses are counted; null when nobody asked.
  fp8::QuantizeCounts* counts_or_null(fp8::QuantizeCounts& counts) const {
    return a_.counters.empty() ? nullptr : &counts;
  }
  /// Adds one thread's losses to the counters.
  void add(const fp8::QuantizeCounts& counts) const;
  /// Once per matrix.
  void count_elements() const;

 private:
  fp8::Quantize a_;
  const fp8::QuantizeKernels& kernels_ = quantize_kernels();
  const fp8::Format& format_;
  const int64_t rows_, cols_, block_, element_;
  const fp8::ScaleLayout layout_, turned_layout_;
  fp8::Scale shared_;
};

}  // namespace ottava::cpu
