#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "core/dtype.h"

namespace ottava {

/// Parameters that are treated differently; the first group whose pattern matches the name decides.
struct ParamGroupConfig {
  std::string match;  ///< glob over the parameter's name: "*norm*", "tok_embeddings.weight"
  std::optional<double> weight_decay;
  double lr_factor = 1;
  bool operator==(const ParamGroupConfig&) const = default;
};

/// Section `optimizer`. What keys mean: optimizer_config.cpp, the table behind --help.
struct OptimizerConfig {
  std::string name = "AdamW";
  double lr = 8e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  DType state_dtype = DType::f32;
  std::vector<ParamGroupConfig> param_groups;
  bool operator==(const OptimizerConfig&) const = default;
};

/// Section `lr_scheduler`; the formula is in core/optim/lr_schedule.h.
struct LrSchedulerConfig {
  enum class Decay { linear, sqrt, cosine };

  int64_t warmup_steps = 200;
  std::optional<int64_t> total_steps;
  std::optional<double> decay_ratio;
  Decay decay_type = Decay::linear;
  double min_lr_factor = 0;
  bool operator==(const LrSchedulerConfig&) const = default;
};

void declare(config::Section& s, ParamGroupConfig& c);
void declare(config::Section& s, OptimizerConfig& c);
void declare(config::Section& s, LrSchedulerConfig& c);

}  // namespace ottava
