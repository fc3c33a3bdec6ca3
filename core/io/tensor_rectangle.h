#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/io/float_cast.h"
#include "core/io/safetensors.h"

namespace ottava {

/// Rows and columns of a stored matrix, half open.
struct TensorRectangle {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  int64_t numel() const { return (row_end - row_begin) * (column_end - column_begin); }
};

/// A stretch of a rectangle that is contiguous in the file.
struct ElementSpan {
  int64_t first = 0;  ///< index in the tensor, row-major
  int64_t local = 0;  ///< index in the dense rectangle
  int64_t count = 0;
};

/// Calls f(ElementSpan) over the rectangle in order, at most `limit` elements at a time: long stretches when
/// it spans all `columns` of the tensor, one row or less otherwise.
template <class F>
void for_each_span(int64_t columns, const TensorRectangle& r, int64_t limit, F&& f) {
  int64_t width = r.column_end - r.column_begin, rows = r.row_end - r.row_begin;
  bool contiguous = width == columns;
  int64_t lines = contiguous ? 1 : rows, line = contiguous ? rows * width : width;
  for (int64_t i = 0; i < lines; ++i) {
    int64_t first = (r.row_begin + i) * columns + r.column_begin;
    for (int64_t j = 0; j < line; j += limit)
      f(ElementSpan{first + j, i * line + j, std::min(limit, line - j)});
  }
}

/// Largest piece that is read or written at once, and thus the largest size of the buffers below.
inline constexpr int64_t kTransferBytes = int64_t{1} << 20;

/// Reads a rectangle piece by piece through `buffer` (resized to at most kTransferBytes) and passes each
/// piece to `take` in its stored type. Throws FileError if the rectangle is outside the tensor or the file is
/// truncated.
void read_rectangle(const SafetensorsFile& file, const SafetensorsEntry& entry,
                    const TensorRectangle& rectangle, std::vector<char>& buffer,
                    const std::function<void(const ElementSpan&, const void* stored)>& take);

/// The stored type of a tensor of weights. Throws FileError unless it is f32, bf16 or f16.
DType weight_dtype_of(const SafetensorsFile& file, const SafetensorsEntry& entry);

/// Reads a rectangle of an f32, bf16 or f16 tensor into dense memory, converting between these types. Throws
/// FileError.
void read_rectangle(const SafetensorsFile& file, const SafetensorsEntry& entry,
                    const TensorRectangle& rectangle, FloatSpan to);

}  // namespace ottava
