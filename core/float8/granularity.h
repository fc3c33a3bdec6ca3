#pragma once

#include <cstdint>
#include <string_view>

#include "core/device.h"
#include "core/tensor.h"

namespace ottava::fp8 {

/// What shares one scale. A matrix is [outer, inner], where products contract the inner extent; blocks run
/// along it. The last block of a row or column may be short.
enum class Granularity : uint8_t { tensor, row, block_1x128, block_128x128, block_1x32 };

/// Where the amax of a group comes from.
enum class AmaxSource : uint8_t {
  given,   ///< measured beforehand, by the matrix's producer or in a pass of its own; ranks may reduce it
  groups,  ///< quantizing itself measures each group
};
/// How the rows of a matrix that is split among ranks are gathered as codes.
enum class RowGather : uint8_t {
  common_scale,   ///< quantized with one amax of all ranks; no scale travels
  scale_rows,     ///< inverse scales are gathered along rows with the codes
  scale_columns,  ///< inverse scales are gathered along the columns of their matrix
  none,           ///< not at all: rows are gathered in the compute type and then quantized
};

/// How a product that contracts the rows of a matrix gets its codes, when the row-wise ones exist.
enum class ColumnwiseCodes : uint8_t {
  none,        ///< it reads the row-wise codes
  transposed,  ///< the row-wise codes are transposed; the number of scales stays the same
  quantized,   ///< made from the values, since groups along columns have scales of their own
};

/// Everything that depends on the granularity and is not arithmetic. Code that makes, keeps, reads or sends
/// an FP8 matrix asks here.
struct GranularityTraits {
  std::string_view name;
  DType scale_dtype = DType::f32;
  int64_t block_rows = 1, block_columns = 1;  ///< elements that share a scale; 0: all of that extent
  AmaxSource amax = AmaxSource::groups;
  /// Column-wise codes need the amax of every column before quantizing; ranks may reduce these amaxes.
  bool needs_column_amax = false;
  /// The inverse scales of the transposed matrix are those of the matrix: one set of codes serves both
  /// orientations.
  bool is_transpose_invariant = false;
  bool is_row_local = false;  ///< a row's producer knows its scales and can write them
  bool is_tiled = false;      ///< inverse scales lie in tiles, but travel untiled (fp8/scale_tiles.h)
  RowGather row_gather = RowGather::none;
  int64_t alignment = 16;  ///< the contraction of a product is a multiple of this
  /// The granularities, as bits, that the other operand of a product may have.
  uint32_t pairs = 0;

  constexpr bool has_blocks() const { return block_columns > 1; }
  constexpr bool has_one_scale() const { return block_rows == 0; }
};
/// The bit of a granularity in GranularityTraits::pairs.
constexpr uint32_t bit(Granularity g) { return 1u << static_cast<uint32_t>(g); }
/// Indexed by Granularity.
inline constexpr GranularityTraits kGranularityTraits[] = {
    {.name = "tensor",
     .block_rows = 0,
     .block_columns = 0,
     .amax = AmaxSource::given,
     .is_transpose_invariant = true,
     .row_gather = RowGather::common_scale,
     .pairs = bit(Granularity::tensor) | bit(Granularity::row)},
    {.name = "row",
     .block_columns = 0,
     .needs_column_amax = true,
     .is_row_local = true,
     .row_gather = RowGather::scale_rows,
     .pairs = bit(Granularity::tensor) | bit(Granularity::row)},
    {.name = "1x128",
     .block_columns = 128,
     .is_row_local = true,
     .row_gather = RowGather::scale_columns,
     .pairs = bit(Granularity::block_1x128) | bit(Granularity::block_128x128)},
    {.name = "128x128",
     .block_rows = 128,
     .block_columns = 128,
     .is_transpose_invariant = true,
     .pairs = bit(Granularity::block_1x128)},
    {.name = "1x32",
     .scale_dtype = DType::e8m0,
     .block_columns = 32,
     .is_tiled = true,
     .alignment = 32,
     .pairs = bit(Granularity::block_1x32)},
};
constexpr const GranularityTraits& traits(Granularity g) {
  return kGranularityTraits[static_cast<size_t>(g)];
}
constexpr std::string_view name_of(Granularity g) { return traits(g).name; }
/// Tensor cores need the contraction in the inner extent, and scales that are not transpose-invariant belong
/// to one direction.
constexpr ColumnwiseCodes columnwise_codes(Granularity g, DeviceType device) {
  if (!traits(g).is_transpose_invariant) return ColumnwiseCodes::quantized;
  return device == DeviceType::cuda ? ColumnwiseCodes::transposed : ColumnwiseCodes::none;
}

/// Shape and dtype of the inverse scales of a [rows, cols] matrix, in the layouts that cuBLASLt reads:
///   tensor          f32 [1]
///   row             f32 [rows]
///   block_1x128     f32 [ceil(cols/128), rows]
///   block_128x128   f32 [ceil(rows/128), ceil(cols/128) up to a multiple of 4], padding zero
///   block_1x32      e8m0, tiles of 128 rows x 4 blocks, row-major, whole tiles, padding zero; inside
///                   a tile the byte of (row, block) is at (row % 32) * 16 + row / 32 * 4 + block
Shape scale_shape(Granularity granularity, int64_t rows, int64_t cols);
constexpr DType scale_dtype(Granularity g) { return traits(g).scale_dtype; }
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
      case Granularity::block_1x32:
        return (row / 128 * blocks_ + col / 128) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col / 32 % 4;
    }
    return -1;  // not reached: kernels call this, and cannot throw
  }

 private:
  Granularity granularity_;
  int64_t rows_, blocks_;
};
/// ScaleLayout for a single element.
inline int64_t scale_index(Granularity granularity, const Shape& matrix, int64_t row, int64_t col) {
  return ScaleLayout(granularity, matrix.rows(), matrix.cols())(row, col);
}
/// Elements of a row that share a scale, given its length.
constexpr int64_t scale_block(Granularity g, int64_t cols) {
  const int64_t block = traits(g).block_columns;
  return block > 0 ? block : cols > 0 ? cols : 1;
}

}  // namespace ottava::fp8
