#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "apps/commands/plan_command.h"
#include "apps/step/step_plan.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "tests/support/overrides.h"

namespace ottava::test {

/// The smallest model that can be cut in every way, with matrices that travel by themselves and packed ones.
inline Overrides small_model(const Overrides& more) {
  return more + model_of({.dim = 128, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 256}) +
         Overrides{"--model.vocab_size", "320", "--training.device",           "cpu",
                   "--training.seq_len", "32",  "--training.local_batch_size", "1"};
}

/// The same for a GPU, which this machine need not have. Without NCCL, which would take more memory than the
/// model.
inline Overrides small_model_on_gpu(const Overrides& more) {
  return small_model(more) + Overrides{"--training.device", "cuda", "--comm.backend", "tcp"};
}

inline const Device kCpu{DeviceType::cpu, 0};

/// `overrides`, with the keys given here replaced.
inline Overrides changed_to(const Overrides& overrides, const Overrides& changed) {
  Overrides all;
  for (size_t i = 0; i < overrides.size(); i += 2) {
    if (std::ranges::find(changed, overrides[i]) == changed.end())
      all.insert(all.end(), {overrides[i], overrides[i + 1]});
  }
  return all + changed;
}

inline StepPlan planned(const Experiment& e, const TrainingShape& shape, int rank) {
  const int ranks = e.mesh.world_size();
  RankGroups groups(make_dry_run_world(rank, ranks), make_dry_run_world(rank, ranks), e.mesh);
  return record_step(shape, kCpu, groups);
}

inline std::string printed(const PlanCommand& command) {
  std::ostringstream out;
  run_plan_command(command, out);
  return out.str();
}

}  // namespace ottava::test
