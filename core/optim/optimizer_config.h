#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "core/dtype.h"
#include "core/optim/update_rule.h"

namespace ottava {

/// Parameters that are treated differently; the first group whose pattern matches the name decides.
struct ParamGroupConfig {
  std::string match;  ///< glob over the parameter's name: "*norm*", "tok_embeddings"
  std::optional<double> weight_decay;
  double lr_factor = 1;
  std::optional<UpdateRule> optimizer_name;
  bool operator==(const ParamGroupConfig&) const = default;
};

/// Section `optimizer`. What keys mean: optimizer_config.cpp, the table behind `ottava config --comments`.
struct OptimizerConfig {
  UpdateRule name = UpdateRule::adamw;
  double lr = 8e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  DType state_dtype = DType::f32;
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;
  std::vector<std::string> ns_coefficients = {"3.4445", "-4.7750", "2.0315"};
  DType ns_dtype = DType::bf16;
  enum class AdjustLr { match_rms_adamw, original };
  AdjustLr adjust_lr_fn = AdjustLr::match_rms_adamw;
  std::vector<ParamGroupConfig> param_groups;
  bool operator==(const OptimizerConfig&) const = default;

  /// Whether `name` or a group names it.
  bool names(UpdateRule rule) const;
  std::array<double, 3> newton_schulz_coefficients() const;
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
void validate(const OptimizerConfig& c, config::Problems& problems);

}  // namespace ottava
