#pragma once

#include <cstdint>
#include <string>

#include "core/config/declare.h"

namespace ottava {

/// Section `metrics`. What keys mean: metrics_config.cpp.
struct MetricsConfig {
  int64_t log_freq = 10;
  bool enable_tensorboard = false;
  bool enable_json_lines = true;
  bool disable_color_printing = false;
  std::string save_tb_folder = "tb";
  bool save_for_all_ranks = false;
  double peak_tflops_bf16 = 0, peak_tflops_fp8 = 0;  ///< 0: the table's, or measured
  bool operator==(const MetricsConfig&) const = default;
};

void declare(config::Section& s, MetricsConfig& c);

}  // namespace ottava
