#pragma once

#include <initializer_list>
#include <span>
#include <utility>

#include "apps/predict/step_time.h"

namespace ottava {

/// The figures of a step by which layouts are compared.
struct StepFigures {
  int64_t alive_bytes = 0;  ///< persistent bytes and those of the fullest moment: no packing takes less
  int64_t nccl_bytes = 0;   ///< what NCCL takes besides, of the same rank
  int64_t sent_bytes = 0, calls = 0;
  double flops = 0, bytes = 0, seconds = 0;
  double compute = 0;  ///< seconds of operations alone; for a pipeline those of its fullest rank
  bool operator==(const StepFigures&) const = default;
};
/// Of so many blocks of each kind, by what a step takes in which all are of that kind.
StepFigures mean(std::initializer_list<std::pair<int64_t, StepFigures>> blocks);
StepFigures figures_of(const StepPlan& plan, const Machine& machine);
/// The same for a pipeline, with memory and traffic of its fullest rank.
StepFigures figures_of(std::span<const StepPlan> roles, const Machine& machine);

/// How blocks repeat: head + motif x times + tail, counted in blocks. Blocks are alike if they compute their
/// products in the same precisions and keep the same.
struct BlockPattern {
  int64_t head = 0, motif = 0, times = 0, tail = 0;
};
BlockPattern block_pattern(const TrainingShape& shape);

/// The shape with `times` motifs: some blocks in the middle are left out, the others stay as they are.
TrainingShape with_motifs(const TrainingShape& shape, const BlockPattern& pattern, int64_t times,
                          const Experiment& experiment);

/// Figures of rank 0's step, from recordings with three and with four motifs. Each motif adds the same FLOPs,
/// bytes, calls and bytes alive, so these figures are exact; but if with more motifs another moment becomes
/// the fullest, more bytes are alive than this says, never fewer. Time is within 1%, once the overlap of
/// compute and transfers repeats. Models that are hardly longer are recorded whole. Not of a pipeline.
StepFigures estimate_step(const Experiment& experiment, Device device, const Machine& machine);

}  // namespace ottava
