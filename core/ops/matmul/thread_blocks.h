#pragma once

#include <cstdint>

#include "core/round_up.h"

namespace ottava::cpu {

/// A block of a product's result [m,n].
struct BlockShape {
  int64_t rows = 0, columns = 0;
};

/// How a result may be divided so that each thread sums a block of it in its L2 cache, over all terms, and
/// packs for itself what it needs of the operands.
struct BlockLimits {
  int64_t row_unit, column_unit;  ///< a block's rows and columns are multiples of
  int64_t row_cost = 1;           ///< of packing a number of A, where one of B costs 1
};

/// One block for each thread, with as little as possible to pack; none if its sums are too large, or if so
/// many threads share the result that each would mostly pack: with blocks of 64 x 128 nothing is gained over
/// oneDNN by AMX, with 128 x 256 a tenth.
inline BlockShape block_of_thread(int64_t m, int64_t n, int64_t threads, const BlockLimits& limits) {
  constexpr int64_t kSumsBytes = int64_t{5} << 18;
  constexpr int64_t kFewestSums = 64;  // for each number that is packed for a term
  BlockShape best;
  const auto cost = [&](const BlockShape& b) { return limits.row_cost * b.rows + b.columns; };
  for (int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    const BlockShape block = {round_up(pieces_of(m, down), limits.row_unit),
                              round_up(pieces_of(n, threads / down), limits.column_unit)};
    const int64_t sums = block.rows * block.columns;
    if (sums * 4 > kSumsBytes || sums < kFewestSums * (block.rows + block.columns)) continue;
    if (best.rows == 0 || cost(block) < cost(best)) best = block;
  }
  return best;
}

}  // namespace ottava::cpu
