#pragma once

#include <vector>

#include "parallel/comm/all_ranks.h"
#include "parallel/sharding/rank_groups.h"
#include "tests/support/thread_ranks.h"

namespace ottava::test {

/// The groups of a rank that is a thread: both of its worlds are the one that run_thread_ranks() gives it.
inline RankGroups groups_over(Communicator& world, const Mesh& mesh) {
  const std::vector<int> all = all_ranks(world.size());
  return {world.split("world", all), world.split("world", all), mesh};
}

}  // namespace ottava::test
