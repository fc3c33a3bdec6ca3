#pragma once

#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace ottava::fp8 {

/// What shares one scale. A matrix is [outer, inner] with the contraction inside; blocks run along it. The
/// last block of a row or column may be short.
enum class Granularity : uint8_t { tensor, row, block_1x128, block_128x128, block_1x32 };
std::string_view name_of(Granularity granularity);

/// Shape and dtype of the inverse scales of a [rows, cols] matrix, in the layouts that cuBLASLt reads:
///   tensor          f32 [1]
///   row             f32 [rows]
///   block_1x128     f32 [ceil(cols/128), rows]
///   block_128x128   f32 [ceil(rows/128), ceil(cols/128) up to a multiple of 4], padding zero
///   block_1x32      e8m0, tiles of 128 rows x 4 blocks, row-major, whole tiles, padding zero; inside
///                   a tile the byte of (row, block) is at (row % 32) * 16 + row / 32 * 4 + block
Shape scale_shape(Granularity granularity, int64_t rows, int64_t cols);
inline DType scale_dtype(Granularity granularity) {
  return granularity == Granularity::block_1x32 ? DType::e8m0 : DType::f32;
}
/// Index into the inverse scales of the element (row, col) of a [rows, cols] matrix.
class ScaleLayout {
 public:
  constexpr ScaleLayout(Granularity granularity, int64_t rows, int64_t cols)
      : granularity_(granularity), rows_(rows), blocks_((cols + 127) / 128) {}
  constexpr int64_t operator()(int64_t row, int64_t col) const {
    switch (granularity_) {
      case Granularity::tensor:
        return 0;
      case Granularity::row:
        return row;
      case Granularity::block_1x128:
        return col / 128 * rows_ + row;
      case Granularity::block_128x128:
        return row / 128 * ((blocks_ + 3) / 4 * 4) + col / 128;
      default:
        return (row / 128 * blocks_ + col / 128) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col / 32 % 4;
    }
  }

 private:
  Granularity granularity_;
  int64_t rows_, blocks_;
};
inline int64_t scale_index(Granularity granularity, const Shape& matrix, int64_t row, int64_t col) {
  return ScaleLayout(granularity, matrix.rows(), matrix.cols())(row, col);
}
/// Elements of a row that share a scale, given its length.
constexpr int64_t scale_block(Granularity granularity, int64_t cols) {
  switch (granularity) {
    case Granularity::block_1x128:
    case Granularity::block_128x128:
      return 128;
    case Granularity::block_1x32:
      return 32;
    default:
      return cols > 0 ? cols : 1;
  }
}

}  // namespace ottava::fp8
