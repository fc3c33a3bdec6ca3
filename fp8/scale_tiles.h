#pragma once

#include "core/float8/granularity.h"
#include "core/stream.h"

namespace ottava::fp8 {

/// Inverse scales of granularity 1x32 of a matrix [rows, cols]: in tiles, as products read them, and in plain
/// order, without tiles and their padding. Plain scales of neighbouring parts of the matrix are neighbours in
/// memory and can be gathered.
struct MxScales {
  enum class Order {
    rows,    ///< plain [rows, ceil(cols/32)]: for a matrix that is cut along rows
    blocks,  ///< plain [ceil(cols/32), rows]: for one that is cut along whole blocks
  };
  Tensor tiles;  ///< e8m0, scale_shape(block_1x32, rows, cols)
  Tensor plain;  ///< e8m0
  Shape matrix;
  Order order = Order::rows;
};

/// plain = the scales in tiles. Overwrites. Throws ShapeError.
void untile_scales(Stream& stream, const MxScales& args);
/// tiles = the scales in plain, with zeros as padding. Overwrites. Throws ShapeError.
void tile_scales(Stream& stream, const MxScales& args);

}  // namespace ottava::fp8
