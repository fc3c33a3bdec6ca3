#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/predict/memory_moves.h"

namespace ottava {

struct SearchOptions {
  double limit_gib = 0;
  size_t top = 10;
  std::vector<std::string> fixed;  ///< "KEY=VALUE" of keys_of(): only layouts that have it
};

/// What a search found. Layouts were recorded in full, the fastest first.
struct SearchResult {
  std::vector<RecordedLayout> best;
  std::vector<std::string> reasons;       ///< of each, why it is not the first; of the first empty
  std::optional<RecordedLayout> closest;  ///< where none fits, the one that needs least
  int64_t layouts = 0, estimated = 0, recorded = 0;
};

/// The fastest that fit. What cannot fit by its persistent memory, or fails with fewer sequences at a
/// time already, is not estimated; resharding is varied around the best. Pipelines that the configuration
/// does not ask for are estimated where their compute leaves them among the fastest, and as many as take some
/// seconds. Estimates (fewer_blocks.h) decide what is recorded, recordings what comes first. Throws
/// ConfigError as all_layouts() does, and where the model can be divided in no way.
SearchResult search_layouts(const Config& config, const PlannedExperiment& planned, const Machine& machine,
                            const SearchOptions& options);

}  // namespace ottava
