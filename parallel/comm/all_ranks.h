#pragma once

#include <numeric>
#include <vector>

namespace ottava {

/// 0 to size - 1: the members of a group that is the whole world.
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace ottava
