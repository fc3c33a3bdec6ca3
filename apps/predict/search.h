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

/// All layouts of so many ranks for this configuration, its global batch, model and precision kept (FP8 is
/// tried on and off where the configuration asks for it): pp x dp_replicate x dp_shard x cp x tp with cp x tp
/// within a machine, sequences at a time, recomputation, FP8 gathers, resharding, and reducing each
/// micro-batch or once. pp: 1, the configuration's, and what options.fixed names; where there are several
/// machines others of up to 16 ranks too, without copies of the sharded model, with the configuration's cp,
/// and where micro-batches x layers are 1,024 at most: longer ones take too long to record unasked.
std::vector<Layout> all_layouts(const PlannedExperiment& planned, const Machine& machine,
                                const SearchOptions& options);

/// The fastest that fit. What cannot fit by its persistent memory, or fails with fewer sequences at a
/// time already, is not estimated; resharding is varied around the best. Pipelines that nobody asked for are
/// estimated where their compute leaves them among the fastest, and as many as take some seconds. Estimates
/// (fewer_blocks.h) decide what is recorded, recordings what comes first. Throws ConfigError for a key that
/// no layout has, and where the model can be divided in no way.
SearchResult search_layouts(const Config& config, const PlannedExperiment& planned, const Machine& machine,
                            const SearchOptions& options);

}  // namespace ottava
