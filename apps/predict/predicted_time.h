#pragma once

#include <cstdint>

namespace ottava {

/// Where a predicted time comes from, the best first.
enum class TimeSource : uint8_t {
  measured,      ///< this very operation was measured
  interpolated,  ///< operations of its kind were measured
  table,         ///< computed from the device's table
};
struct PredictedTime {
  double seconds = 0;
  TimeSource source = TimeSource::table;
};

}  // namespace ottava
