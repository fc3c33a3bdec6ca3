#pragma once

#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/step/training_state.h"
#include "core/data/mixed_loader.h"

namespace ottava {

/// Notes in the state which data it has read so far: the order of a mixture, and the fingerprint of the data.
void note_data(TrainingState& state, const data::MixedLoader& data);
/// Notes in the state the versions of the files that it has read so far (data_version.h). For rank 0 only.
void note_files(TrainingState& state, const data::MixedLoader& data);
/// To be called on rank 0, after a checkpoint was loaded and before check_data_unchanged(). Returns a warning
/// for each source whose files are not those of the checkpoint although their sizes and samples are equal or,
/// where check_data_unchanged() will warn that data differ, one that says of which sources of a mixture;
/// then notes the versions of the present files. Sources of which the checkpoint has no version are not
/// compared.
std::vector<std::string> changes_of_files(TrainingState& state, const data::MixedLoader& data);
/// To be called after a checkpoint was loaded. Throws ConfigError if its samples were drawn with other
/// weights (which, if sources have none, follow from their sizes), and warns if the data differ; then notes
/// the present data.
void check_data_unchanged(TrainingState& state, const data::MixedLoader& data, const TrainingConfig& config);
/// Of checkpoint.advance_data_steps.
int64_t samples_left_out(const Experiment& experiment);
/// Skips the data of checkpoint.advance_data_steps steps, where a branch begins at checkpoint.load_step.
void leave_out_data(TrainingState& state, const data::MixedLoader& data, const Experiment& experiment);

}  // namespace ottava
