#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "apps/config/experiment.h"
#include "core/cost.h"
#include "core/cpu/bf16_products.h"

namespace ottava {

/// Peak rates that utilization is measured against, FLOP/s of one device.
struct DevicePeaks {
  double fp32 = 0, bf16 = 0, fp8 = 0;
  std::string source;  ///< of bf16: "measured on this GPU", "NVIDIA H200 (dense)", "metrics.peak_tflops_bf16"
};

/// Peaks from NVIDIA's data sheets, with BF16's for FP8 where a GPU has none; nothing for one that is not
/// listed. `name` as given by the driver.
std::optional<DevicePeaks> data_sheet_peaks(std::string_view name);
/// Sets the peaks that the configuration gives; the others stay.
void set_given_peaks(DevicePeaks& peaks, const MetricsConfig& config);

/// FLOP/s of a square product of this precision on the stream's device, large enough to fill it: the best run
/// within `seconds`, after one that is not counted. Sums are f32; FP8 is e4m3 with a scale per tensor; bf16
/// on a CPU is the better of both ways (core/cpu/bf16_products.h). Takes memory and gives it back.
double measure_peak(Stream& stream, Precision precision, double seconds);

/// Settles peaks of rank 0's GPU that neither the configuration nor the table has, as decisions ("peak bf16
/// of NVIDIA RTX A6000"): those of `saved`, else measured on that GPU. FP8 only if the step uses it. Every
/// rank makes the call; on a CPU it decides nothing. Throws ConfigError, on all ranks, for a saved peak that
/// is not a positive number.
void settle_peaks(Experiment& experiment, RankGroups& ranks, Device device, const Decisions& saved);

/// Where find_device_peaks() looks.
struct PeakSearch {
  MetricsConfig metrics = {};
  Decisions decisions = {};    ///< settle_peaks()'
  std::string cache = "auto";  ///< training.gemm_cache: where peaks of this CPU are kept
  bool uses_fp32 = true, uses_bf16 = true;
};
/// Each precision's peak: what the configuration gives; else the table of dense vendor figures; else what was
/// decided for this GPU or kept for this CPU (its model, threads, library and instruction set); else, if it
/// is used, a measurement on `device`, which for a CPU is kept for later runs. One in which others had the
/// cores is repeated by later runs until one is undisturbed. No rate that is kept for a CPU is above the peak
/// of its precision. What is still unknown, and FP32 where the configuration gives BF16 and no table has it,
/// is assumed: FP32 as half of BF16, BF16 as FP32, FP8 as BF16.
DevicePeaks find_device_peaks(Device device, const PeakSearch& search = {});

/// The part of this CPU's bf16 peak that products reach if they are multiplied in this way: 1 for the faster
/// way, and where there is only one. Both are timed by turns, once, and kept as peaks are.
double part_of_bf16_peak(cpu::Bf16Products way, const PeakSearch& search);

/// Nothing uses more than 100% of a device. While `utilization` (of something that was timed, as a fraction)
/// is above 1, measures peaks of this CPU again and keeps them; then raises those on which it depends
/// by what is still missing, and says so in the log.
void raise_peaks(DevicePeaks& peaks, Device device, const PeakSearch& search,
                 const std::function<double(const DevicePeaks&)>& utilization);

}  // namespace ottava
