#pragma once

#include <cstdint>

#include "core/cpu/pair_product.h"
#include "core/ops/attention/attention_kernels.h"

namespace ottava::cpu {

/// Operands of a part, and pair_part_bytes() of memory for its scores and whatever else belongs to the part
/// alone.
struct PairPart {
  const bf16 *q = nullptr, *dout = nullptr, *k = nullptr, *v = nullptr, *right = nullptr;
  int64_t head_dim = 0;
  char* memory = nullptr;
};

/// Kernels of PairProducts.
struct PairAttentionKernels {
  /// TileProducts::attend() and differentiate() for at most kPairPanel rows. Probabilities and dscores are
  /// written as a B whose rows are terms, in tiles of 32 rows (zeros past the tile's own) by 16 keys. To be
  /// called with subnormal numbers taken for zero (TileProducts::Use).
  void (*attend)(const SoftmaxTile&, const PairPart&);
  void (*differentiate)(const GradientTile&, const PairPart&, float* dq);
};

/// Bytes of PairPart::memory: rows of dscores, sums.
inline int64_t pair_part_bytes(int64_t stride, int64_t head_dim) {
  return kPairPanel * (stride * size_of(DType::bf16) + head_dim * size_of(DType::f32));
}

}  // namespace ottava::cpu
OTTAVA_PAIR_KERNELS(PairAttentionKernels, pair_attention_kernels)
