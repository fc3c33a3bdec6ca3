#include <algorithm>

#include "core/float8/codec_kernels.h"
#include "core/ops/check.h"
#include "core/parallel_for.h"
#include "fp8/quantize_threads.h"

namespace ottava::cpu {
namespace {

constexpr int64_t kPiece = 4096;

/// n elements of x from `at` on, as bf16: rounded into the buffer if they are f32.
const bf16* as_bf16(const Tensor& x, int64_t at, int64_t n, bf16* buffer) {
  if (x.dtype == DType::bf16) return x.as<bf16>() + at;
  amax_kernels().round(x.as<float>() + at, n, buffer);
  return buffer;
}

}  // namespace

void amax(const Tensor& x, const Tensor& amax) {
  parallel_for(x.numel(), kPiece, [&](int64_t begin, int64_t end) {
    bf16 buffer[kPiece];
    uint32_t largest = 0;
    const int64_t piece = x.dtype == DType::bf16 ? end - begin : kPiece;
    for (int64_t at = begin; at < end; at += piece) {
      const int64_t n = std::min(piece, end - at);
      uint32_t bits = 0;
      amax_kernels().blocks(as_bf16(x, at, n, buffer), n, n, &bits);
      largest = std::max(largest, bits);
    }
    raise_amax(amax, largest);
  });
}

void column_amax(const Tensor& x, const Tensor& amax) {
  constexpr int64_t kWidth = 256;
  const int64_t rows = x.rows(), cols = x.cols();
  parallel_for(cols, kWidth, [&](int64_t begin, int64_t end) {
    bf16 buffer[kWidth];
    for (int64_t c = begin; c < end; c += kWidth) {
      const int64_t n = std::min(kWidth, end - c);
      uint32_t bits[kWidth];
      auto raise = [&] {
        uint32_t* to = amax.as<uint32_t>() + c;
        for (int64_t i = 0; i < n; ++i) to[i] = std::max(to[i], bits[i]);
      };
      if (x.dtype == DType::bf16) {
        amax_kernels().columns(x.as<bf16>() + c, cols, {0, rows, n}, bits);
        raise();
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        amax_kernels().columns(as_bf16(x, r * cols + c, n, buffer), n, {0, 1, n}, bits);
        raise();
      }
    }
  });
}

}  // namespace ottava::cpu
