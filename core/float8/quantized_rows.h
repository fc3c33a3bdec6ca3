#pragma once

#include <vector>

#include "core/float8/row_quantizer.h"
#include "core/threads/parallel_for.h"

namespace ottava::cpu {

/// Calls make(row, Tensor [1,C]) for every row and quantizes what it writes there while that is in the cache.
/// Of x only dtype and shape matter. Rows are written to `kept` if they are wanted, else to a row that the
/// thread reuses.
template <class Make>
void for_each_quantized_row(const fp8::RowOutput& output, const Tensor& x, const Tensor& kept, Make&& make) {
  const int64_t rows = x.rows(), cols = x.cols();
  const RowQuantizer quantizer(output, x, output.out.codes.dtype);
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> own(kept.empty() ? cols * size_of(x.dtype) : 0);
    fp8::QuantizeCounts counts;
    for (int64_t r = begin; r < end; ++r) {
      void* row = kept.empty() ? own.data() : static_cast<void*>(kept.at(r * cols));
      make(r, Tensor{row, x.dtype, {1, cols}});
      quantizer.quantize_row(r, row, quantizer.counts_or_null(counts));
    }
    quantizer.add(counts);
  });
  quantizer.count_elements();
}

}  // namespace ottava::cpu
