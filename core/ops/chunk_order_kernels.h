#pragma once

#include "core/ops/chunk_order.h"

namespace ottava {

/// Where a copy of chunks reads and writes.
struct ChunkCopy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t ranks = 0, batch = 0;
  int64_t chunk_bytes = 0;
  bool to_position = true;  ///< `from` is by rank; else it is by position

  int64_t chunks() const { return 2 * ranks * batch; }
};
/// The place, by rank, of the chunk at this place by position.
constexpr int64_t place_by_rank(int64_t by_position, int64_t ranks, int64_t batch) {
  const int64_t b = by_position / (2 * ranks), k = by_position % (2 * ranks);
  return (k < ranks ? 2 * k : 2 * (2 * ranks - 1 - k) + 1) * batch + b;
}

namespace cuda {
void copy_chunks(Stream& stream, const ChunkCopy& copy);
}  // namespace cuda

}  // namespace ottava
