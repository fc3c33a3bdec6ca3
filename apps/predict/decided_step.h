#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/decide/decide.h"
#include "apps/predict/machine.h"
#include "apps/step/step_plan.h"

namespace ottava {

/// An experiment as a run would decide it, and what was recorded of its step.
template <class Recorded>
struct Decided {
  Experiment experiment;
  Recorded step;
};

/// What a step takes of one rank, and what else is taken from its limit.
struct RankBytes {
  int64_t step = 0, besides = 0;
};

/// Decides, of what memory decides, as a run on ranks that may take `limit_gib` would (decided_by_memory());
/// without a limit the experiment stays as it is. `record(shape)` records a step, and `bytes(recorded)` is
/// what that takes, a RankBytes for each rank of a pipeline, or one without a pipeline.
template <class Record, class Bytes>
auto decide_and_record(const Experiment& given, Device device, std::optional<double> limit_gib,
                       const Record& record, const Bytes& bytes) {
  const auto decided = [](const TrainingShape& s) {
    return std::tuple(s.parameters.reduce_every_micro_batch, s.parameters.keeps_float8_codes,
                      s.model_options.loss_chunk_rows, s.model_options.recompute);
  };
  using Recorded = decltype(record(given.shape));
  std::optional<std::pair<decltype(decided(given.shape)), Recorded>> last;
  const auto recorded = [&](const TrainingShape& shape) -> Recorded& {
    if (!last || last->first != decided(shape)) last.emplace(decided(shape), record(shape));
    return last->second;
  };
  Experiment e = given;
  if (limit_gib) {
    e = decided_by_memory(std::move(e), [&](const TrainingShape& shape) {
      const auto limit = static_cast<int64_t>(*limit_gib * (1 << 30));
      std::vector<MemoryNeed> needs;
      for (const RankBytes rank : bytes(recorded(shape)))
        needs.push_back(
            MemoryNeed::of_device(device, {.bytes = rank.step, .available = limit - rank.besides}));
      return needs;
    });
  }
  Recorded& step = recorded(e.shape);
  return Decided<Recorded>{std::move(e), std::move(step)};
}

/// The same with sample_roles(). On a machine that is known, what NCCL takes is no part of what is left.
Decided<std::vector<StepPlan>> decided_step(const Experiment& given, Device device,
                                            std::optional<double> limit_gib, const Machine* machine,
                                            Packing packing = Packing::full);

/// Bytes that the snapshot for asynchronous checkpoints takes of the device's memory beside the step of a
/// rank with this place in its pipeline, at most: none of a GPU's.
int64_t snapshot_beside(const Experiment& experiment, Device device, int role);
/// The same of the rank at each place in the pipeline.
std::vector<int64_t> snapshots_beside(const Experiment& experiment, Device device);

}  // namespace ottava
