#pragma once

#include <cstdint>

#include "core/cpu/amx_product.h"
#include "core/ops/attention/attention_kernels.h"

namespace ottava::cpu {

/// Operands of a part, and memory for its scores and what else is of the part alone: amx_part_bytes().
struct AmxPart {
  const bf16 *q = nullptr, *dout = nullptr, *k = nullptr, *v = nullptr, *right = nullptr;
  int64_t head_dim = 0;
  char* memory = nullptr;
};

struct AmxAttentionKernels {
  /// TileProducts::attend and differentiate of at most kAmxPanel rows. Probabilities and dscores are a B of
  /// which rows are terms, with tiles of 32 rows, those past the tile's zeros, and 16 keys.
  void (*attend)(const SoftmaxTile&, const AmxPart&);
  void (*differentiate)(const GradientTile&, const AmxPart&, float* dq);
};

/// Bytes of AmxPart's memory.
inline int64_t amx_part_bytes(int64_t stride, int64_t head_dim) {
  return kAmxPanel * (stride + head_dim) * static_cast<int64_t>(sizeof(float));
}

#if OTTAVA_HAS_AMX  // the compiler knows it
namespace avx512_amx {
AmxAttentionKernels amx_attention_kernels();
}
#endif

/// Null where bf16 is not multiplied by AMX.
inline const AmxAttentionKernels* amx_attention_kernels() {
#if OTTAVA_HAS_AMX
  static const AmxAttentionKernels kernels = avx512_amx::amx_attention_kernels();
  return amx_product_kernels() ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace ottava::cpu
