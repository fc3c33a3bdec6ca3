#pragma once

#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// Means of token losses, over all ranks.
struct GlobalLoss {
  double mean = 0;
  double largest = 0;  ///< largest mean among the ranks that see different sequences
  double tokens = 0;   ///< that count, on all ranks
};
/// From each rank's sum of losses over its tokens that count, and their number; zeros if there are no tokens.
/// All ranks call it.
GlobalLoss global_loss(RankGroups& ranks, double sum, double tokens);

}  // namespace ottava
