#pragma once

#include <string>
#include <vector>

#include "apps/config/config.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// What names the branch that a run begins by going back to earlier step numbers: checkpoint.load_step and
/// what else says where it begins, "load_step 20, advance_data_steps 3, without optimizer", or the newest
/// checkpoint, where exclude_from_loading has train_state. Empty otherwise. Checkpoints carry it
/// (TrainingState::branch), so that the same command, started again, goes on with its branch.
std::string branch_of(const CheckpointConfig& config);

struct StepsToLoad {
  std::vector<checkpoint::SavedStep> steps;  ///< the earliest first
  /// The newest whose state can be read is of branch_of() this configuration, which it goes on with.
  bool is_of_branch = false;
};
/// The checkpoints of the run's folder that it may load: none where checkpoint.enable is false; where
/// checkpoint.load_step is set, only that one, or those from it on of a branch that goes on.
StepsToLoad steps_to_load(const Config& config);

/// Where a run ends, in words: "training.steps 6", "step 24, where training.epochs 2 end".
std::string end_of_run(const TrainingConfig& config);

/// Why there is nothing to train: the newest checkpoint has reached training.steps, or is past it; with
/// training.epochs these are known once the data is counted. Empty where there is, also when the run goes
/// back to earlier step numbers. Collective.
std::string nothing_to_train(const Config& config, RankGroups& ranks);
/// Thrown by a Trainer that finds it out, on all ranks.
struct NothingToTrain {
  std::string why;
};

}  // namespace ottava
