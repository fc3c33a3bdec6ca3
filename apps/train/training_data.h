#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/train/batch_source.h"
#include "core/data/mixed_loader.h"
#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// The data that an experiment trains on: training.dataset_path, or the sources of training.mixture. Where
/// these are weighted by `repeat`, rank 0 counts their windows, which tokenizes text that was not counted
/// before. All ranks call it. Throws what MixedLoader and its loaders throw, and ConfigError for a mixture
/// that cannot be, and for ranks whose files differ.
data::MixedLoader open_training_data(const Experiment& experiment, RankGroups& ranks);

/// How many steps see the data training.epochs times; the last may begin another epoch. Rank 0 counts, as
/// above; all ranks call it.
int64_t steps_of_epochs(const Experiment& experiment, const data::MixedLoader& data, RankGroups& ranks);

/// Text to validate on; the name is empty where there is only one.
struct ValidationSet {
  std::string name;
  std::vector<std::string> paths;
  std::unique_ptr<BatchSource> data;
};
/// validation.dataset_path, or each of validation.datasets; none unless validation.enable. All ranks call it.
/// Throws what opening them throws, and ConfigError for ranks whose files differ.
std::vector<ValidationSet> open_validation_data(const Experiment& experiment, const RankGroups& ranks);

/// How a rank reads them.
BatchSource::Options training_batches(const Experiment& experiment, const RankGroups& ranks);

}  // namespace ottava
