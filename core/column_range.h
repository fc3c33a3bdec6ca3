#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/tensor.h"

namespace ottava {

/// A block of a matrix's columns; by default all of them.
struct ColumnRange {
  int64_t begin = 0, end = 0;
  bool is_all() const { return begin == 0 && end == 0; }
};

/// Rows of a matrix, or of a block of its columns.
struct MatrixRows {
  void* data = nullptr;  ///< null on `meta`
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  ///< elements from one row to the next

  int64_t numel() const { return rows * cols; }
  Shape shape() const { return {rows, cols}; }
  double bytes() const { return static_cast<double>(numel()) * size_of(dtype); }
  void* at(int64_t row, int64_t col) const { return at(row * stride + col); }
  /// The address `element` elements from the start.
  void* at(int64_t element) const { return static_cast<char*>(data) + element * size_of(dtype); }
};
/// The rows of `matrix`, or of `block` of its columns. Throws ShapeError, in the name of `op`, for a block
/// that the matrix does not have.
inline MatrixRows rows_of(std::string_view op, const Tensor& matrix, ColumnRange block = {}) {
  if (block.is_all()) {
    block.end = matrix.cols();
  } else if (block.begin < 0 || block.begin >= block.end || block.end > matrix.cols()) {
    fail<ShapeError>(op, "columns [{}, {}) are not a block of {}", block.begin, block.end, describe(matrix));
  }
  MatrixRows out{.data = matrix.data,
                 .dtype = matrix.dtype,
                 .rows = matrix.rows(),
                 .cols = block.end - block.begin,
                 .stride = matrix.cols()};
  if (out.data) out.data = out.at(0, block.begin);
  return out;
}

}  // namespace ottava
