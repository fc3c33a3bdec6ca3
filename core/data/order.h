#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "core/philox.h"

namespace ottava::data {

/// In which order blocks and documents are read.
enum class Order { shuffled, sequential };

/// A permutation of [0, n) by the Fisher-Yates shuffle, drawn from a Philox stream: for i = n-1 ... 1, swap
/// element i with element stream.below(i + 1, i).
inline std::vector<int32_t> permutation(int64_t n, PhiloxStream stream) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) {
    uint64_t j = stream.below(i + 1, i);
    std::swap(order[i], order[j]);
  }
  return order;
}

/// The stream that orders the blocks of an epoch.
inline PhiloxStream block_stream(uint64_t seed, int64_t epoch) {
  return {.seed = seed, .stream = 2 * static_cast<uint64_t>(epoch)};
}
/// The stream that orders the documents of one segment in an epoch. Streams are 64-bit numbers drawn from the
/// seed, so two of them coincide with probability 2^-64.
inline PhiloxStream document_stream(uint64_t seed, int64_t epoch, int64_t block, int64_t segment) {
  PhiloxStream epoch_stream{.seed = seed, .stream = 2 * static_cast<uint64_t>(epoch) + 1};
  PhiloxStream of_block{.seed = epoch_stream.word(block), .stream = seed};
  return {.seed = seed, .stream = of_block.word(segment)};
}

}  // namespace ottava::data
