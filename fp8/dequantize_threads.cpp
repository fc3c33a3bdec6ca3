#include <algorithm>

#include "core/float8/codec_kernels.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"
#include "fp8/quantize_threads.h"

namespace ottava::cpu {

using namespace fp8;

namespace {

/// Inverse scales looked up at a time.
constexpr int64_t kMostBlocks = 128;

/// Inverses of the `count` groups of a row from column `col` on.
void look_up(const Float8Codes& x, const ScaleLayout& layout, Granularity granularity, int64_t row,
             int64_t col, int64_t count, float* inverses) {
  if (granularity == Granularity::block_1x32) {
    // Four blocks of a row lie side by side, the next four a tile further.
    const uint8_t* codes = static_cast<const uint8_t*>(x.scale_inverse.data) + layout(row, col);
    for (int64_t b = 0; b < count; ++b) inverses[b] = decode_e8m0(codes[b / 4 * 512 + b % 4]);
    return;
  }
  for (int64_t b = 0; b < count; ++b) {
    inverses[b] = static_cast<const float*>(x.scale_inverse.data)[layout(row, col + b * 128)];
  }
}

}  // namespace

void dequantize(const Float8Codes& x, Granularity granularity, const Tensor& y) {
  auto kernel = decode_kernels().decode[y.dtype];
  const bool e5m2 = x.codes.dtype == DType::e5m2;
  const ScaleLayout layout(granularity, y.rows(), y.cols());
  const int64_t cols = y.cols(), block = scale_block(granularity, cols), piece = block * kMostBlocks;
  parallel_for(y.rows(), 16, [&](int64_t begin, int64_t end) {
    float inverses[kMostBlocks];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < cols; c += piece) {
        const int64_t n = std::min(piece, cols - c);
        look_up(x, layout, granularity, r, c, pieces_of(n, block), inverses);
        kernel(x.codes.as<uint8_t>() + r * cols + c, n, block, inverses, e5m2, y.at(r * cols + c));
      }
    }
  });
}

void transpose_codes(const Tensor& from, const Tensor& to) {
  constexpr int64_t kWidth = 64, kBand = 128;
  const int64_t rows = from.rows(), cols = from.cols();
  parallel_for(cols, kWidth, [&](int64_t begin, int64_t end) {
    // A band of rows stays in the cache while its columns are written.
    for (int64_t r = 0; r < rows; r += kBand) {
      decode_kernels().transpose(from.as<uint8_t>() + r * cols + begin, cols,
                                 to.as<uint8_t>() + begin * rows + r, rows,
                                 {0, std::min(kBand, rows - r), end - begin});
    }
  });
}

}  // namespace ottava::cpu
