#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "parallel/calls/progress_record.h"

namespace ottava {

/// Finds, in what ranks report, those that have waited long for others: for a log that would say nothing
/// while a rank reads or writes for minutes.
class LongWaits {
 public:
  using Clock = std::chrono::steady_clock;
  /// A wait is long after so many seconds.
  explicit LongWaits(double seconds) : seconds_(seconds), next_seconds_(seconds) {}

  /// What is to be said of `records`, those of all ranks, by rank, as they are now; empty: nothing. A wait is
  /// told when it has become long, and again each time that it has become twice as long.
  std::string look(const std::vector<ProgressRecord>& records, Clock::time_point now);

 private:
  struct Since {
    int64_t call = 0;  ///< that the rank is in, 0 if it is in none
    Clock::time_point when;
  };
  double seconds_, next_seconds_;
  std::vector<Since> since_;
};

}  // namespace ottava
