#pragma once

#include <cstdint>
#include <span>

namespace ottava {

/// A stretch of time, [begin, end).
struct Interval {
  int64_t begin = 0, end = 0;
};

/// Where a rank's time went, from the first beginning to the last end. A moment in which several things
/// happen counts once: compute + exposed + idle = total, and exposed + overlapped = communication.
struct TimeSplit {
  int64_t total = 0, compute = 0, communication = 0;
  int64_t exposed = 0;     ///< communication while nothing is computed
  int64_t overlapped = 0;  ///< communication while something is computed
  int64_t idle = 0;        ///< neither
};
/// Intervals in any order and unit; they may overlap.
TimeSplit split_time(std::span<const Interval> compute, std::span<const Interval> communication);

}  // namespace ottava
