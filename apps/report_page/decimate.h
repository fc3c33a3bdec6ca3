#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "apps/report_page/run_history.h"

namespace ottava {

/// A column in at most so many points, none of its extremes lost. What has no finite number is NaN.
struct Points {
  Column last;         ///< the last finite number of each bucket
  Column least, most;  ///< empty where every bucket is one line
};

/// [begin, end) of at most `most` buckets of `lines` lines, each of about as many.
std::vector<std::pair<size_t, size_t>> buckets_of(size_t lines, size_t most);
Points decimate(const Column& column, const std::vector<std::pair<size_t, size_t>>& buckets);

}  // namespace ottava
