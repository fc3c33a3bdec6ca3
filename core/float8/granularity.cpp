#include "core/float8/granularity.h"

#include "core/round_up.h"

namespace ottava::fp8 {
Shape scale_shape(Granularity granularity, int64_t rows, int64_t cols) {
  switch (granularity) {
    case Granularity::tensor:
      return {1};
    case Granularity::row:
      return {rows};
    case Granularity::block_1x128:
      return {pieces_of(cols, 128), rows};
    case Granularity::block_128x128:
      return {pieces_of(rows, 128), pieces_of(pieces_of(cols, 128), 4) * 4};
    default:
      return {pieces_of(rows, 128), pieces_of(cols, 128), 512};
  }
}

}  // namespace ottava::fp8
