#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Chunks of B sequences in two orders: by position, and by the R ranks that share each sequence, where rank
/// r holds chunks r and 2 R - 1 - r.
///     by_position[b, k] = by_rank[r, half, b];  k = r in half 0, 2 R - 1 - r in half 1
/// by_rank is [R, 2, B, chunk, C], by_position [B, 2 R, chunk, C], both as matrices [rows, C] of one dtype.
struct ChunkOrder {
  Tensor by_rank, by_position;
  int64_t ranks = 1, batch = 1;
};
/// by_position = by_rank. Throws ShapeError.
void order_by_position(Stream& stream, const ChunkOrder& args);
/// by_rank = by_position. Throws ShapeError.
void order_by_rank(Stream& stream, const ChunkOrder& args);

}  // namespace ottava
