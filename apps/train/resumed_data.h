#pragma once

#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/train/training_state.h"
#include "core/data/mixed_loader.h"

namespace ottava {

/// Writes into the state what it has read so far: the order of a mixture, and the fingerprint of the data.
void note_data(TrainingState& state, const data::MixedLoader& data);
/// The same of the contents of its files: rank 0.
void note_files(TrainingState& state, const data::MixedLoader& data);
/// What there is to say, on rank 0 and before check_data_unchanged(), of files that are other ones than those
/// of the checkpoint though their sizes and samples are equal; then notes what is here. Those of a source
/// that another stage of a mixture begins, and of a checkpoint that says nothing, are as they are.
std::vector<std::string> changes_of_files(TrainingState& state, const data::MixedLoader& data);
/// After a checkpoint was loaded. Throws ConfigError where its samples were drawn by other weights, which
/// where sources have none follow from their sizes, and warns of other data; then notes what is here.
void check_data_unchanged(TrainingState& state, const data::MixedLoader& data, const TrainingConfig& config);
/// Passes over the data of checkpoint.advance_data_steps steps: where a branch begins at
/// checkpoint.load_step.
void leave_out_data(TrainingState& state, const data::MixedLoader& data, const Experiment& experiment);

}  // namespace ottava
