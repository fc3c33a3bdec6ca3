#pragma once

#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/step/training_state.h"
#include "core/io/attempts.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// The name of the branch that a run begins by going back to earlier step numbers: checkpoint.load_step and
/// whatever else says where it begins ("load_step 20, advance_data_steps 3, without optimizer"), or the
/// newest checkpoint, or none, if exclude_from_loading has train_state. Empty otherwise. Checkpoints carry it
/// (TrainingState::branch), so that the same command, started again, continues its branch.
std::string branch_of(const CheckpointConfig& config);

/// What steps_to_load() returns.
struct StepsToLoad {
  std::vector<checkpoint::SavedStep> steps;  ///< the earliest first
  /// Whether the newest one whose state can be read belongs to branch_of() this configuration, which the run
  /// continues.
  bool is_of_branch = false;
};
/// The checkpoints of its folder that the run may load: none if checkpoint.enable is false; if
/// checkpoint.load_step is set, only that one or, if the run continues a branch, those from it on. Only
/// rank 0 calls it. Has three attempts at a checkpoint that the system cannot read, unless it is
/// `unreadable`, to which it then belongs.
StepsToLoad steps_to_load(const Config& config, GivenUp& unreadable);
/// The same without the newest ones that cannot be opened; loading names them.
StepsToLoad whole_steps_to_load(const Config& config, GivenUp& unreadable);

/// What checkpoint.initial_load_path, which must be set, stands for; for a run's folder, its newest
/// checkpoint.
std::string initial_path_of(const Config& config);

/// The step and the place in the data (data_position, mixture, sequences_per_step) with which the run will
/// begin, as its files say before anything is loaded, without the data that checkpoint.advance_data_steps
/// leaves out. What is broken is found out by loading, which may then give an earlier step. Collective.
TrainingState state_to_load(const Experiment& experiment, RankGroups& ranks);

/// Whether the newest checkpoint of state_to_load() holds only weights. Collective.
bool begins_without_moments(const Config& config, RankGroups& ranks);

/// Refuses what loading would refuse too, but only after measurements and with the data open: a
/// checkpoint.load_step that does not exist, and checkpoints of another model. Collective. Throws FileError,
/// ConfigError.
void check_steps_to_load(const Experiment& experiment, RankGroups& ranks);

/// From which complete checkpoints of `step` or before to go on if what came after is of no use, as the end
/// of a sentence; empty if there are none. `config` is the run's, `folder` that of its checkpoints.
std::string advice_to_go_back(const CheckpointConfig& config, const std::string& folder, int64_t step);

/// Where a run ends, in words: "training.steps 6", "step 24, where training.epochs 2 end".
std::string end_of_run(const TrainingConfig& config);

/// Why there is nothing to train: the newest checkpoint has reached or passed training.steps (with
/// training.epochs, known once the data is counted). Empty if there is something to train, as when the run
/// goes back to earlier step numbers, and if the last step has results_missing(). Collective.
std::string nothing_to_train(const Config& config, RankGroups& ranks);
/// Thrown on all ranks by a Trainer that finds nothing to train.
struct NothingToTrain {
  std::string why;
};

}  // namespace ottava
