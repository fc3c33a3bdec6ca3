#pragma once

#include "apps/config/experiment.h"

namespace ottava {

/// What a step takes of the rank that has least to spare, and what that rank may take.
struct MemoryNeed {
  int64_t bytes = 0, available = 0;
  /// With something to spare: the rest is for the tokenizer's threads, the page cache of saves and what the
  /// machine does besides.
  bool fits() const { return static_cast<double>(bytes) <= 0.8 * static_cast<double>(available); }
};
/// Of `experiment` with this shape, the snapshot of asynchronous checkpoints in host memory included. Every
/// rank makes the call.
MemoryNeed memory_need(const Experiment& experiment, const TrainingShape& shape, RankGroups& ranks,
                       Device device);

}  // namespace ottava
