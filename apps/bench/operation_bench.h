#pragma once

#include <functional>

#include "core/stream.h"

namespace ottava {

/// Median seconds per call, timed in batches that together last `seconds`, after one call that is not
/// counted. At least one call is timed, however long it takes.
double seconds_per_call(Stream& stream, const std::function<void(Stream&)>& run, double seconds);

/// What the device does at best.
struct BenchPeaks {
  double bytes_per_second = 0;      ///< of a copy that no cache holds
  double flops_per_second = 0;      ///< of a bf16 product: measure_peak() (decide/device_peaks.h)
  double f32_flops_per_second = 0;  ///< the same of an f32 product; 0: not measured
};
BenchPeaks measure_peaks(Stream& stream, bool with_f32);

}  // namespace ottava
