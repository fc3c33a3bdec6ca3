#pragma once

#include "apps/config/experiment.h"
#include "apps/decide/device_peaks.h"
#include "apps/step/step_plan.h"

namespace ottava {

/// How fast a step was, and how well it used the device, measured in three ways. Peaks are dense and of one
/// device.
struct Throughput {
  double tokens_per_second = 0;  ///< per device
  double tflops = 0;             ///< model FLOPs per device and second
  double mfu_percent = 0;        ///< of the bf16 peak, whatever precision runs: the conventional figure
  double conservative_mfu_percent = 0;  ///< of the FP8 peak where anything runs in FP8: as if everything did
  /// The time that the FLOPs as computed would take, each at the peak of its own precision, over the time
  /// taken; for the mean rank, since ranks of a pipeline do unequal parts. Attention counts what a causal
  /// mask leaves; boundaries of documents are not subtracted.
  double utilization_percent = 0;
};

/// What a step took, and how much it did.
struct StepRate {
  double seconds = 0;  ///< of one step
  double tokens = 0;   ///< of one step, all ranks
  int ranks = 1;
  double model_flops_per_token = 0;
};
/// `flops`: those of the mean rank (mean_flops()).
Throughput throughput(const StepFlops& flops, const DevicePeaks& peaks, const StepRate& rate);

}  // namespace ottava
