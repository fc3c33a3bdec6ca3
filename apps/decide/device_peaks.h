#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "apps/config/experiment.h"
#include "core/cost.h"

namespace ottava {

/// Peak rates that utilization is measured against, FLOP/s of one device.
struct DevicePeaks {
  double fp32 = 0, bf16 = 0, fp8 = 0;
  std::string source;  ///< of bf16: "measured on this GPU", "NVIDIA H200 (dense)", "metrics.peak_tflops_bf16"
};

/// By NVIDIA's data sheets; nothing for a GPU that is not in the list. `name` as the driver says it.
std::optional<DevicePeaks> data_sheet_peaks(std::string_view name);
/// Puts in the peaks that keys of the configuration give; the others stay.
void set_given_peaks(DevicePeaks& peaks, const MetricsConfig& config);

/// FLOP/s of a square product of this precision on the stream's device, as large as fills it: the best of the
/// runs of `seconds`, after one that is not counted. Sums are f32; FP8 is e4m3 with a scale per tensor; bf16
/// on a CPU the better of both ways (core/cpu/bf16_products.h). Memory is taken and given back.
double measure_peak(Stream& stream, Precision precision, double seconds);

/// Peaks of rank 0's GPU that neither the configuration nor the table knows, as decisions ("peak bf16 of
/// NVIDIA RTX A6000"): those of `saved`, else measured there. FP8 only where the step multiplies it. Every
/// rank makes the call; on a CPU it decides nothing.
void settle_peaks(Experiment& experiment, RankGroups& ranks, Device device, const Decisions& saved);

struct PeakSearch {
  MetricsConfig metrics = {};
  Decisions decisions = {};    ///< settle_peaks()'
  std::string cache = "auto";  ///< training.gemm_cache: where peaks of this CPU are kept
  bool uses_fp32 = true, uses_bf16 = true;
};
/// For each precision what the configuration gives, else the table of dense vendor figures, else what was
/// decided for this GPU or kept for this CPU (its model, threads, library and instruction set), else, if it
/// is used, a measurement on `device`; the CPU's is kept for later runs. What is still unknown: FP32 half of
/// BF16, BF16 as FP32, FP8 as BF16.
DevicePeaks find_device_peaks(Device device, const PeakSearch& search = {});

/// Nothing uses more than all of a device: while `utilization` (of something that was timed, as a part of 1)
/// is above 1, peaks that were measured on this CPU are measured again, and kept, and all of them are then
/// raised by what is missing, which the log says.
void raise_peaks(DevicePeaks& peaks, Device device, const PeakSearch& search,
                 const std::function<double(const DevicePeaks&)>& utilization);

}  // namespace ottava
