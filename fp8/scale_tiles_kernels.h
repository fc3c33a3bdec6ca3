#pragma once

#include "fp8/scale_tiles.h"

namespace ottava::fp8 {

/// Index of a scale in plain order.
struct PlainScales {
  int64_t rows, blocks;
  bool rows_outside;
  constexpr int64_t operator()(int64_t row, int64_t block) const {
    return rows_outside ? row * blocks + block : block * rows + row;
  }
};
inline PlainScales plain_scales(const MxScales& a) {
  return {a.matrix.rows(), (a.matrix.cols() + 31) / 32, a.order == MxScales::Order::rows};
}

}  // namespace ottava::fp8

namespace ottava::fp8::cuda {
void untile_scales(Stream& stream, const MxScales& args);
void tile_scales(Stream& stream, const MxScales& args);
}  // namespace ottava::fp8::cuda
