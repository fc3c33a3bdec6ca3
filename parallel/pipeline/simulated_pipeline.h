#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/pipeline_program.h"
#include "parallel/pipeline/replay.h"

namespace ottava {

/// Of one stage; chunks are alike.
struct ActionCosts {
  double forward = 1, input_gradient = 1, weight_gradient = 1;
  double transfer = 0;  ///< from a stage to the next
  double of(Action::Kind kind) const;
};

/// A pipeline run with these costs.
struct SimulatedPipeline {
  double seconds = 0;
  double idle_share = 0;          ///< of the time of all ranks together
  std::vector<double> in_flight;  ///< by rank: most micro-batches kept for backward, in stages of 1 / chunks
  std::vector<std::vector<ReplayedStep>> actions;  ///< by rank, by action of its list
};

/// Transfers that nothing holds up: what a schedule can reach.
SimulatedPipeline simulate(const PipelineSchedule& schedule, const ActionCosts& costs = {});
/// One stream of calls on each rank, in which a transfer waits for both ends. Throws Error if it hangs.
SimulatedPipeline simulate(const PipelineSchedule& schedule, const PipelineProgram& program,
                           const ActionCosts& costs = {});

/// A line for each rank, time from left to right, a character for each forward of a chunk: digits forward,
/// small letters the gradient of the input, capitals that of the weights (a: micro-batch 0), dots idle;
/// micro-batches from 10 and 26 on begin again. Cut at `columns`.
std::string picture_of(const PipelineSchedule& schedule, int columns = 120);

}  // namespace ottava
