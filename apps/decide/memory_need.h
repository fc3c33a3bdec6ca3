#pragma once

#include <span>
#include <vector>

#include "apps/config/experiment.h"

namespace ottava {

/// What a step takes of the rank that has least to spare, and what that rank may take.
struct MemoryNeed {
  int64_t bytes = 0, available = 0;
  /// The part of `available` that a decision may fill. On a CPU the rest is for the tokenizer's threads, the
  /// page cache of saves and whatever else the machine does; on a GPU it has been set aside already
  /// (memory_for_rank()).
  double share = 0.8;
  double spare() const { return share * static_cast<double>(available) - static_cast<double>(bytes); }
  bool fits() const { return spare() >= 0; }
  /// The same, with the share that is a GPU's or a CPU's.
  static MemoryNeed of_device(Device device, MemoryNeed need) {
    if (device.is_gpu()) need.share = 1;
    return need;
  }
};
/// The needs of `experiment` with this shape, including the snapshot of asynchronous checkpoints in host
/// memory: for each rank of a pipeline, or one without a pipeline, the tightest() of those in its place.
/// Every rank makes the call, and gets the same.
std::vector<MemoryNeed> memory_needs(const Experiment& experiment, const TrainingShape& shape,
                                     RankGroups& ranks, Device device);
/// Of several ranks' needs, in their order, the one with least to spare: if it fits, all do. Of equal ones
/// the first, so that ranks that compare the same needs decide the same.
MemoryNeed tightest(std::span<const MemoryNeed> needs);

}  // namespace ottava
