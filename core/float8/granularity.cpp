#include "core/float8/granularity.h"

namespace ottava::fp8 {
namespace {
constexpr int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
}  // namespace

Shape scale_shape(Granularity granularity, int64_t rows, int64_t cols) {
  switch (granularity) {
    case Granularity::tensor:
      return {1};
    case Granularity::row:
      return {rows};
    case Granularity::block_1x128:
      return {blocks(cols, 128), rows};
    case Granularity::block_128x128:
      return {blocks(rows, 128), blocks(blocks(cols, 128), 4) * 4};
    default:
      return {blocks(rows, 128), blocks(cols, 128), 512};
  }
}

}  // namespace ottava::fp8
