#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/config/training_config.h"
#include "apps/data/batch_source.h"
#include "apps/report/metrics_reporter.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// What each source of a mixture has contributed to training: tokens, share, epochs and loss; and whether one
/// of them is seen too often.
class SourceReport {
 public:
  /// `data` must outlive it.
  SourceReport(const TrainingConfig& config, data::MixedLoader& data, RankGroups& ranks);

  /// Checks how often each source will have been seen after `samples`, the end of the run: warns above 4
  /// times and throws ConfigError above a source's max_epochs. Where an estimate is too close to that limit,
  /// rank 0 counts. All ranks call it and throw together.
  void check_epochs(int64_t samples);

  /// Counts this rank's part of the step that `read` read last. `losses`: for each sample the sum of the
  /// losses of its tokens that count.
  void add(const BatchSource& read, const std::vector<float>& losses);
  /// After `samples` samples from the beginning of the data: writes a line to the log and returns the scalars
  /// `mixture/NAME/loss` (the mean over the tokens that count of the steps since the last call; absent if
  /// there were none), `tokens`, `share` and `epochs`. All ranks call it.
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
