#pragma once

#include <vector>

#include "core/cuda/gpu.h"

namespace ottava::cuda {

/// Several tensors for one launch, passed by value (at most 4 KiB): each block works on one piece of one
/// tensor.
template <class Entry>
struct TensorList {
  static constexpr int kMax = static_cast<int>(3800 / (sizeof(Entry) + sizeof(unsigned)));
  Entry entries[kMax];
  unsigned first_block[kMax + 1];
  int count;

  /// The entry that this block works on.
  __device__ __forceinline__ int find(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

/// Calls body(list, blocks) for consecutive entries. An entry needs ceil(elements / per_block) blocks,
/// perhaps none.
template <class Entry, class Body>
void for_each_list(const std::vector<Entry>& entries, int64_t per_block, Body&& body) {
  TensorList<Entry> list{};
  int64_t blocks = 0;
  auto flush = [&] {
    if (blocks) body(list, grid_of(blocks));
    list.count = 0;
    blocks = 0;
  };
  for (const Entry& entry : entries) {
    const int64_t needed = ceil_div(entry.elements, per_block);
    if (needed == 0) continue;
    if (list.count == TensorList<Entry>::kMax || blocks + needed > 2147483647) flush();
    list.entries[list.count] = entry;
    list.first_block[list.count++] = static_cast<unsigned>(blocks);
    blocks += needed;
    list.first_block[list.count] = static_cast<unsigned>(blocks);
  }
  flush();
}

}  // namespace ottava::cuda
