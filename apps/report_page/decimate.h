#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "apps/report_page/run_history.h"

namespace ottava {

/// A column reduced to one point per bucket, with its extremes kept. NaN where a bucket has no finite number.
struct Points {
  Column last;         ///< the last finite number of each bucket
  Column least, most;  ///< empty where every bucket is one line
  /// Buckets whose only numbers were not finite, where a curve has a gap; empty if there is none.
  std::vector<bool> gaps;
};

/// Ranges [begin, end) of at most `most` buckets of `lines` lines, of about equal size.
std::vector<std::pair<size_t, size_t>> buckets_of(size_t lines, size_t most);
Points decimate(const Column& column, const std::vector<std::pair<size_t, size_t>>& buckets);

}  // namespace ottava
