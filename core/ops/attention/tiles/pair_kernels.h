#pragma once

#include <cstdint>

#include "core/cpu/pair_product.h"
#include "core/ops/attention/attention_kernels.h"

namespace ottava::cpu {

/// Operands of a part, and memory for its scores and what else is of the part alone: pair_part_bytes().
struct PairPart {
  const bf16 *q = nullptr, *dout = nullptr, *k = nullptr, *v = nullptr, *right = nullptr;
  int64_t head_dim = 0;
  char* memory = nullptr;
};

struct PairAttentionKernels {
  /// TileProducts::attend and differentiate of at most kPairPanel rows. Probabilities and dscores are a B of
  /// which rows are terms, with tiles of 32 rows, those past the tile's zeros, and 16 keys.
  void (*attend)(const SoftmaxTile&, const PairPart&);
  void (*differentiate)(const GradientTile&, const PairPart&, float* dq);
};

/// Bytes of PairPart's memory.
inline int64_t pair_part_bytes(int64_t stride, int64_t head_dim) {
  return kPairPanel * (stride + head_dim) * static_cast<int64_t>(sizeof(float));
}

}  // namespace ottava::cpu
OTTAVA_PAIR_KERNELS(PairAttentionKernels, pair_attention_kernels)
