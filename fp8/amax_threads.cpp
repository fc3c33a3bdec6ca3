#include <algorithm>

#include "core/float8/codec_kernels.h"
#include "core/raise_amax.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"
#include "fp8/quantize_threads.h"

namespace ottava::cpu {
namespace {

constexpr int64_t kPiece = 4096;

/// n elements of a row as bf16: rounded into the buffer if they are f32.
const bf16* as_bf16(const MatrixRows& x, int64_t row, int64_t col, int64_t n, bf16* buffer) {
  if (x.dtype == DType::bf16) return static_cast<const bf16*>(x.at(row, col));
  amax_kernels().round(static_cast<const float*>(x.at(row, col)), n, buffer);
  return buffer;
}

}  // namespace

void amax(const MatrixRows& matrix, const Tensor& amax) {
  MatrixRows x = matrix;
  if (x.stride == x.cols) x.cols = x.numel(), x.rows = x.cols > 0;  // one long row
  const int64_t pieces = pieces_of(x.cols, kPiece);
  parallel_for(x.rows * pieces, 1, [&](int64_t begin, int64_t end) {
    bf16 buffer[kPiece];
    uint32_t largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t col = i % pieces * kPiece, n = std::min(kPiece, x.cols - col);
      uint32_t bits = 0;
      amax_kernels().blocks(as_bf16(x, i / pieces, col, n, buffer), n, n, &bits);
      largest = std::max(largest, bits);
    }
    raise_amax(amax, largest);
  });
}

void column_amax(const MatrixRows& x, const Tensor& amax) {
  constexpr int64_t kWidth = 256;
  parallel_for(x.cols, kWidth, [&](int64_t begin, int64_t end) {
    bf16 buffer[kWidth];
    for (int64_t c = begin; c < end; c += kWidth) {
      const int64_t n = std::min(kWidth, end - c);
      uint32_t bits[kWidth];
      auto raise = [&] {
        uint32_t* to = amax.as<uint32_t>() + c;
        for (int64_t i = 0; i < n; ++i) to[i] = std::max(to[i], bits[i]);
      };
      if (x.dtype == DType::bf16) {
        amax_kernels().columns(as_bf16(x, 0, c, n, buffer), x.stride, {0, x.rows, n}, bits);
        raise();
        continue;
      }
      for (int64_t r = 0; r < x.rows; ++r) {
        amax_kernels().columns(as_bf16(x, r, c, n, buffer), n, {0, 1, n}, bits);
        raise();
      }
    }
  });
}

}  // namespace ottava::cpu
