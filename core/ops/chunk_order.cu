#include "core/cuda/gpu.h"
#include "core/ops/chunk_order_kernels.h"

// Ceiling: memory bandwidth, every byte read and written once, 16 at a time where chunks are aligned.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256, kPerThread = 4;

/// A block in y is a chunk, blocks in x share its words.
template <class Word>
__global__ void __launch_bounds__(kBlock) chunk_kernel(ChunkCopy c, int64_t first_chunk, int64_t words) {
  const int64_t position = first_chunk + blockIdx.y, rank = place_by_rank(position, c.ranks, c.batch);
  const Word* from = static_cast<const Word*>(c.from) + (c.to_position ? rank : position) * words;
  Word* to = static_cast<Word*>(c.to) + (c.to_position ? position : rank) * words;
  const int64_t first = thread_of_grid(kBlock * kPerThread);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kBlock;
    if (i < words) to[i] = from[i];
  }
}

template <class Word>
void copy_words(Stream& stream, const ChunkCopy& c) {
  const int64_t words = c.chunk_bytes / static_cast<int64_t>(sizeof(Word));
  for_each_grid(c.chunks(), [&](int64_t first, unsigned chunks) {
    launch("copy_chunks", stream,
           {.grid = dim3(grid_of(ceil_div(words, kBlock * kPerThread)), chunks), .block = kBlock},
           chunk_kernel<Word>, c, first, words);
  });
}

}  // namespace

void copy_chunks(Stream& stream, const ChunkCopy& c) {
  const auto is_aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(uint4) == 0; };
  if (c.chunk_bytes == 0) return;
  if (c.chunk_bytes % sizeof(uint4) == 0 && is_aligned(c.from) && is_aligned(c.to)) {
    copy_words<uint4>(stream, c);
  } else {
    copy_words<uint8_t>(stream, c);
  }
}

}  // namespace ottava::cuda
