#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/round_up.h"
#include "core/threads/parallel_for.h"

namespace ottava {

/// The elements of many tensors as one list of chunks of at most kSize elements, none across two tensors.
/// Threads share the list evenly however different the tensors' sizes are, and the chunks do not depend on
/// the number of threads.
class TensorChunks {
 public:
  static constexpr int64_t kSize = 16384;
  struct Chunk {
    int64_t index = 0;  ///< in the whole list
    size_t tensor = 0;
    int64_t begin = 0, end = 0;  ///< elements of that tensor
  };

  void add(int64_t elements) {
    sizes_.push_back(elements);
    first_.push_back(first_.back() + pieces_of(elements, kSize));
  }
  int64_t count() const { return first_.back(); }

  /// Calls body(Chunk) for all chunks, from several threads.
  template <class Body>
  void for_each(Body&& body) const {
    parallel_for(count(), 1, [&](int64_t begin, int64_t end) {
      size_t t = std::upper_bound(first_.begin(), first_.end(), begin) - first_.begin() - 1;
      for (int64_t i = begin; i < end; ++i) {
        while (i >= first_[t + 1]) ++t;
        const int64_t start = (i - first_[t]) * kSize;
        body(Chunk{i, t, start, std::min(start + kSize, sizes_[t])});
      }
    });
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<int64_t> first_ = {0};  ///< first_[t]: index of tensor t's first chunk
};

/// The chunks of `part` of each item, a tensor or a shape.
template <class Items, class Part>
TensorChunks chunks_of(const Items& items, const Part& part) {
  TensorChunks chunks;
  for (const auto& item : items) chunks.add(std::invoke(part, item).numel());
  return chunks;
}

}  // namespace ottava
