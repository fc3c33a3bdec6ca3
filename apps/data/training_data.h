#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/data/batch_source.h"
#include "apps/step/training_state.h"
#include "core/data/mixed_loader.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// The data that an experiment trains on: training.dataset_path, or the sources of training.mixture in the
/// order of a run that begins at step 0. If these are weighted by `repeat`, rank 0 counts their windows,
/// which tokenizes text that was not counted before. All ranks call it. Throws what MixedLoader and its
/// loaders throw, ConfigError for an impossible mixture or if ranks have different files, and DataError for
/// llm.c's files of another tokenizer if documents are to be kept apart (model.attn_mask_type block_causal).
data::MixedLoader open_training_data(const Experiment& experiment, RankGroups& ranks);

/// The order of the sources of training.mixture, which must not be empty, in a run that begins with `from`.
/// What it has read keeps its order (from.mixture); each of mixture_stages begins at its step, whatever the
/// run has read in the steps before. Where steps are counted anew, so are the stages. All ranks call it.
data::Mixture mixture_from(const Experiment& experiment, const data::MixedLoader& data, RankGroups& ranks,
                           const TrainingState& from);

/// Windows per epoch of a source, after tokenizing its text that was not counted before, which the log says.
/// Throws as reading does.
int64_t count_windows(const data::MixedLoader::Source& source);

/// The last step of a run that begins with `from` and sees the data training.epochs times, whatever it has
/// seen in the steps before; the last step may begin another epoch. If the data has been seen so often
/// already, it is from.step at most. Rank 0 counts, as above; all ranks call it. Throws ConfigError for more
/// steps than a run may have, and if steps are counted anew in data that has been seen so often.
int64_t last_step_of_epochs(const Experiment& experiment, const data::MixedLoader& data, RankGroups& ranks,
                            const TrainingState& from);

/// Text to validate on; the name is empty where there is only one.
struct ValidationSet {
  std::string name;
  std::vector<std::string> paths;
  std::unique_ptr<BatchSource> data;
};
/// validation.dataset_path, or each of validation.datasets; none unless validation.enable. All ranks call it.
/// Throws what training_batches() and opening them throw, as for training.
std::vector<ValidationSet> open_validation_data(const Experiment& experiment, const RankGroups& ranks);

/// How a rank reads training data. Throws MemoryError, the same on all ranks, if a rank's part of the host
/// has no room for the tokens of a step. All ranks call it.
BatchSource::Options training_batches(const Experiment& experiment, const RankGroups& ranks);

}  // namespace ottava
