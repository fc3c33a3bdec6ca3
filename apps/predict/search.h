#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/predict/memory_moves.h"

namespace ottava {

/// What a search is limited to.
struct SearchOptions {
  double limit_gib = 0;
  size_t top = 10;
  std::vector<std::string> fixed;  ///< "KEY=VALUE" of keys_of(): only layouts that have it
};

/// What a search found: layouts that were recorded in full, the fastest first.
struct SearchResult {
  std::vector<RecordedLayout> best;
  std::vector<std::string> reasons;       ///< why each is not the first; empty for the first
  std::optional<RecordedLayout> closest;  ///< if none fits, the one that needs least, with NCCL
  int64_t layouts = 0, estimated = 0, recorded = 0;
};

/// Finds the fastest layouts that fit. Layouts that cannot fit by their persistent memory alone, or that fail
/// with fewer sequences at a time already, are not estimated. Where one mode fits and the one before that
/// recomputes less does not, or only with logits of fewer tokens at a time, activation_checkpoint.mode auto
/// is estimated too, if it may be among the fastest (recompute_modes.h); it is kept if what it comes to is
/// none of the modes. Resharding, and whether weights travel as FP8 codes, are varied around the best.
/// Pipelines that the configuration does not ask for are estimated if their compute leaves them among the
/// fastest, for a few seconds in all. Estimates (fewer_blocks.h) decide what is recorded; recordings decide
/// the order. Throws ConfigError as all_layouts() does, and if there is no way to divide the model.
SearchResult search_layouts(const Config& config, const PlannedExperiment& planned, const Machine& machine,
                            const SearchOptions& options);

}  // namespace ottava
