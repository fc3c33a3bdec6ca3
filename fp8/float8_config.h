#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "fp8/fast_accumulation.h"

namespace ottava {

/// One entry of the per-GEMM policy: where the pattern matches, this recipe (or "bf16") overrides what came
/// before.
struct Float8PolicyConfig {
  std::string match;   ///< glob over GEMM names, "layers.*.feed_forward.w2"
  std::string recipe;  ///< a recipe's name or "bf16"
  bool operator==(const Float8PolicyConfig&) const = default;
};

/// Section `quantize.linear.float8`; in force when model.converters holds "quantize.linear.float8".
/// What keys mean: float8_config.cpp.
struct Float8Config {
  enum class KeepCodes { automatic, yes, no };

  std::string recipe_name = "tensorwise";
  std::vector<std::string> filter_fqns;  ///< may hold "auto_filter_small_kn"
  std::vector<Float8PolicyConfig> policy;
  int64_t high_precision_first_blocks = 0, high_precision_last_blocks = 0;
  bool automatic = false;  ///< key `auto`
  std::string auto_decisions;
  bool emulate = false;
  bool power_of_two_scales = false;
  fp8::FastAccumulation fast_accumulation = fp8::FastAccumulation::forward;
  int64_t amax_history_length = 1024, margin = 0;  ///< recipe `delayed`
  bool enable_fsdp_float8_all_gather = false;
  KeepCodes keep_weight_codes = KeepCodes::automatic;
  bool enable_tp_float8_all_gather = false;
  bool enable_float8_gradient_all_to_all = false;
  bool pad_vocabulary = false;
  bool enable_statistics = true;
  double alert_underflow = 0.001, alert_gradient_underflow = 0.05, alert_saturation = 0.001;
  bool operator==(const Float8Config&) const = default;
};

void declare(config::Section& s, Float8PolicyConfig& c);
void declare(config::Section& s, Float8Config& c);
void validate(const Float8Config& c, config::Problems& problems);

}  // namespace ottava
