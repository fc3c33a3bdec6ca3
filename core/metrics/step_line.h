#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ottava {

/// What is known about training at a logged step. Losses are means over tokens; times and rates are means of
/// the steps since the last logged one.
struct StepMetrics {
  int64_t step = 0;
  double global_avg_loss = 0;  ///< over all tokens of the step
  double global_max_loss = 0;  ///< largest of the ranks' means
  /// over all tokens; not part of the losses above; absent if there is none
  std::optional<double> z_loss = {};
  double grad_norm = 0;  ///< global, before clipping
  double learning_rate = 0;
  int64_t tokens_seen = 0;              ///< since the beginning of training, all ranks
  double tokens_per_second = 0;         ///< per device
  int devices = 1;                      ///< ranks of the job
  double tflops = 0;                    ///< model FLOPs (models/llama/llama_config.h) per device and second
  double mfu_percent = 0;               ///< model FLOPs against the BF16 peak: the conventional figure
  double conservative_mfu_percent = 0;  ///< against the FP8 peak where anything runs in FP8
  bool runs_float8 = false;             ///< the line shows the conservative figure too
  /// time the operations would take at the peak of their own precision / time taken
  double utilization_percent = 0;
  double step_seconds = 0;
  double data_seconds = 0;                    ///< of them, waiting for data
  double memory_gib = 0, memory_percent = 0;  ///< highest so far, as the line shows it
  double active_gib = 0, active_percent = 0, reserved_gib = 0, reserved_percent = 0;  ///< highest so far
  double loss_scale = 1;                       ///< of this step's gradients
  int64_t skipped_steps = 0;                   ///< so far
  std::optional<int64_t> skipped_spikes = {};  ///< so far; absent where none are skipped
};

/// TorchTitan's line, with learning rate, tokens so far and, for several ranks, the rate of the whole job;
/// then the honest utilization:
///   step: 10  loss:  4.1234  grad_norm:  1.2345  lr: 3.00e-04  tokens: 1,048,576  memory:  0.51GiB(0.37%)
///   tps: 365,000 per rank, 1,460,000 in all  tflops: 26.26  mfu: 2.66%  util: 3.10%
/// With FP8, `mfu: 2.66%  mfu(fp8): 1.33%  util: 3.10%`: never only the conservative figure or the
/// utilization.
std::string step_line(const StepMetrics& metrics, bool colors);

/// "41.53%", or ">100%". The conventional figure counts attention that the mask hides, and FP8 products
/// against the BF16 peak, so it may exceed what a device can do; the metrics have the number.
std::string mfu_text(double percent, int digits = 2);

/// `x`, but a NaN without the sign that processors give it, with which it would be printed as "-nan".
double unsigned_nan(double x);

/// "1,234,567".
std::string with_commas(int64_t number);
/// Of tokens in a second: "1,235"; below 10 with three digits, never with an exponent: "0.0000123".
std::string rate_text(double per_second);

}  // namespace ottava
