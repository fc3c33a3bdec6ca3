#pragma once

#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// Means of token losses, over all ranks.
struct GlobalLoss {
  double mean = 0;
  double largest = 0;  ///< of the ranks that see different sequences
  double tokens = 0;   ///< that count, of all ranks
};
/// From each rank's sum over its tokens that count, and their number. All ranks call it; no tokens: zeros.
GlobalLoss global_loss(RankGroups& ranks, double sum, double tokens);

}  // namespace ottava
