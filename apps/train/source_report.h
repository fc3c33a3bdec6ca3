#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/config/training_config.h"
#include "apps/report/metrics_reporter.h"
#include "apps/train/batch_source.h"
#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// What each source of a mixture has given to training: tokens, share, epochs and loss; and whether one of
/// them is seen too often.
class SourceReport {
 public:
  /// `data` must outlive it.
  SourceReport(const TrainingConfig& config, data::MixedLoader& data, RankGroups& ranks);

  /// How often each source will have been seen after `samples`, the end of the run: warns above 4 and refuses
  /// above a source's max_epochs, as far as it can be known. All ranks call it and throw together. Throws
  /// ConfigError.
  void check_epochs(int64_t samples);

  /// Counts a step of this rank, the last that `read` has read: of each of its samples the sum of the losses
  /// of its tokens that count.
  void add(const BatchSource& read, const std::vector<float>& losses);
  /// At `samples` from the beginning of the data: a line in the log, and scalars `mixture/NAME/loss` (the
  /// mean over tokens that count of the steps since the last call; absent if there were none), `tokens`,
  /// `share`, `epochs`. All ranks call it.
  MetricsReporter::Scalars log(int64_t samples);
  /// Which source has been seen more often than its max_epochs after so many samples; empty: none.
  std::string over_limit(int64_t samples) const;

 private:
  struct Sum {
    double loss = 0, tokens = 0;
  };
  const TrainingConfig& config_;
  data::MixedLoader& data_;
  RankGroups& ranks_;
  std::vector<Sum> since_log_;
};

}  // namespace ottava
