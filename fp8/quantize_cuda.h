#pragma once

#include "fp8/quantize.h"

namespace ottava::fp8::cuda {

/// What quantizing on a GPU writes, and what it needs besides x. Device pointers; null for what is left out.
struct QuantizeTargets {
  uint8_t *out = nullptr, *transposed = nullptr;
  void *out_inverse = nullptr, *transposed_inverse = nullptr;
  const uint32_t *amax = nullptr, *column_amax = nullptr;
  unsigned long long* counters = nullptr;
  uint32_t *non_finite = nullptr, *largest = nullptr;
  ScaleRounding rounding = ScaleRounding::none;
  bool wide_rows = false,
       wide_columns = false;  ///< rows of x and out, and of transposed, can be moved 16 bytes at a time
};

/// `out` with a scale per row: one pass over rows, each kept in registers between its amax and its codes.
void quantize_rows(Stream& stream, const Quantize& args, const QuantizeTargets& to);

}  // namespace ottava::fp8::cuda
