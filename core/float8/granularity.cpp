#include "core/float8/granularity.h"

#include "core/error.h"
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
    case Granularity::block_1x32:
      return {pieces_of(rows, 128), pieces_of(cols, 128), 512};
  }
  fail("fp8", "granularity {} has no scale_shape()", static_cast<int>(granularity));
}

}  // namespace ottava::fp8
