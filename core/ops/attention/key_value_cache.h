#pragma once

#include "core/ops/rope.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Splits a fused projection for generation: copies keys and values of qkv [B*T, row()] to positions
/// [position, position + T) of the caches [B, capacity, H_kv*D], and queries to q [B*T, H*D] (may be left
/// out). All of one dtype, f32 or bf16. Throws ShapeError.
struct StoreKeyValues {
  Tensor qkv, q, keys, values;
  AttentionHeads heads;
  int64_t batch = 0, sequence = 0, position = 0;
};
void store_key_values(Stream& stream, const StoreKeyValues& args);

}  // namespace ottava
