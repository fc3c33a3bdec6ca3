#pragma once

#include <algorithm>
#include <cstdint>

#include "core/threads/parallel_for.h"

// Sums over all rows of a batch (the gradient of a norm's weight) that are bitwise the same for any number of
// threads: the rows are cut into a fixed number of groups, each group makes its own sum, and the sums are
// added in order.
namespace ottava {

/// Enough for 64 threads, few enough that adding the partial sums costs little beside making them.
inline constexpr int64_t kRowGroups = 64;

/// Calls body(partial, begin, end) for the rows of each group, where partial = partials + group * cols has
/// been set to zero.
template <class Body>
void for_each_row_group(int64_t rows, int64_t cols, float* partials, Body&& body) {
  parallel_for_index(kRowGroups, 1, [&](int64_t g) {
    float* partial = partials + g * cols;
    std::fill(partial, partial + cols, 0.0f);
    body(partial, rows * g / kRowGroups, rows * (g + 1) / kRowGroups);
  });
}

/// out[c] += the sum of partials[g][c] over the groups g, in order. partials has `stride` columns, of which
/// the first `cols` are added.
inline void add_row_groups(const float* partials, int64_t stride, float* out, int64_t cols) {
  parallel_for(cols, 256, [&](int64_t begin, int64_t end) {
    for (int64_t g = 0; g < kRowGroups; ++g) {
      for (int64_t c = begin; c < end; ++c) out[c] += partials[g * stride + c];
    }
  });
}

}  // namespace ottava
