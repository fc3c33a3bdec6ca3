#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "apps/commands/plan_command.h"
#include "apps/step/step_plan.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"

namespace ottava::test {

using Overrides = std::vector<std::string>;

/// The smallest model that can be cut in every way, with matrices that travel by themselves and packed ones.
inline Overrides small_model(Overrides more) {
  for (const char* text :
       {"--model.dim", "128", "--model.n_layers", "2", "--model.n_heads", "4", "--model.n_kv_heads", "4",
        "--model.ffn_dim", "256", "--model.vocab_size", "320", "--training.device", "cpu",
        "--training.seq_len", "32", "--training.local_batch_size", "1"})
    more.emplace_back(text);
  return more;
}

/// The same for a GPU, which this machine need not have. Without NCCL, which would take more memory than the
/// model.
inline Overrides small_model_on_gpu(Overrides more) {
  Overrides overrides = small_model(std::move(more));
  overrides.insert(overrides.end(), {"--training.device", "cuda", "--comm.backend", "tcp"});
  return overrides;
}

inline const Device kCpu{DeviceType::cpu, 0};

/// `overrides`, with the keys given here replaced.
inline Overrides changed_to(const Overrides& overrides, const Overrides& changed) {
  Overrides all;
  for (size_t i = 0; i < overrides.size(); i += 2) {
    if (std::ranges::find(changed, overrides[i]) == changed.end())
      all.insert(all.end(), {overrides[i], overrides[i + 1]});
  }
  all.insert(all.end(), changed.begin(), changed.end());
  return all;
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
