#pragma once

#include <vector>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/stage_split.h"

namespace ottava {

/// How a model is divided among the ranks of a pipeline, and in which order they work.
struct PipelineLayout {
  PipelineShape shape;
  std::vector<StageUnits> stages;  ///< in the model's order; empty: no pipeline

  bool is_on() const { return shape.ranks > 1; }
  StageUnits units_of(int rank, int chunk) const { return stages[shape.stage_of(rank, chunk)]; }
  /// For each unit, whether the rank holds it; empty without a pipeline.
  std::vector<bool> units_of(int rank) const {
    std::vector<bool> held;
    if (!is_on()) return held;
    held.resize(stages.back().end);
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int unit = units_of(rank, chunk).begin; unit < units_of(rank, chunk).end; ++unit)
        held[unit] = true;
    return held;
  }
};

}  // namespace ottava
