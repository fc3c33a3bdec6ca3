#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/pipeline_program.h"
#include "parallel/pipeline/replay.h"

namespace ottava {

/// Seconds, or any unit, that one stage takes; all chunks are alike.
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

/// Runs the schedule with transfers that nothing holds up: the best it can reach.
SimulatedPipeline simulate(const PipelineSchedule& schedule, const ActionCosts& costs = {});
/// Runs the program with one stream of calls on each rank, in which a transfer waits for both ends. Throws
/// Error if it hangs.
SimulatedPipeline simulate(const PipelineSchedule& schedule, const PipelineProgram& program,
                           const ActionCosts& costs = {});

/// A picture with one line per rank and time from left to right; a character is as long as the forward of a
/// chunk. Digits are forwards, small letters gradients of the input, capitals gradients of the weights (a:
/// micro-batch 0), dots idle time. From micro-batch 10 on digits repeat, from 26 on letters. Lines
/// are cut at 120 characters.
std::string picture_of(const PipelineSchedule& schedule);

}  // namespace ottava
