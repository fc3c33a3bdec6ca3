#pragma once

#include "apps/config/experiment.h"

namespace ottava {

/// What a step takes of the rank that has least to spare, and what that rank may take.
struct MemoryNeed {
  int64_t bytes = 0, available = 0;
  /// What of `available` a decision may fill. Of a machine's memory the rest is for the tokenizer's threads,
  /// the page cache of saves and what the machine does besides; of a GPU's it is kept back already
  /// (memory_for_rank()).
  double share = 0.8;
  bool fits() const { return static_cast<double>(bytes) <= share * static_cast<double>(available); }
};
/// Of `experiment` with this shape, the snapshot of asynchronous checkpoints in host memory included. Every
/// rank makes the call.
MemoryNeed memory_need(const Experiment& experiment, const TrainingShape& shape, RankGroups& ranks,
                       Device device);

}  // namespace ottava
