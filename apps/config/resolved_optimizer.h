#pragma once

#include <vector>

#include "apps/config/training_shape.h"
#include "core/optim/optimizer_config.h"

namespace ottava {

/// How each parameter of the table is trained, by optimizer.param_groups; a fused parameter takes the group
/// that matches its own name or those of all its parts. Throws ConfigError for a group that matches no
/// parameter, none that an earlier one does not match, or only some parts of a fused one, and for a vector
/// that is given to Muon.
std::vector<ParameterTraining> resolve_groups(const OptimizerConfig& config,
                                              const std::vector<ParameterSpec>& specs);

/// Sets what a shape has of section `optimizer` for each update rule; `seed` is that of stochastic rounding.
void resolve_optimizer(const OptimizerConfig& config, int64_t seed, TrainingShape& shape);

}  // namespace ottava
