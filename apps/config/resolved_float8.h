#pragma once

#include <optional>
#include <vector>

#include "apps/config/experiment.h"

namespace ottava {

/// Decides the FP8 policy of the shape, and what it means for the model and its sharded weights, for hardware
/// of this compute capability and by measured speedups (null: not measured yet, so that every candidate of
/// `auto` runs in FP8). Throws ConfigError for products whose tokens do not align.
void resolve_float8(const Config& config, const LlamaParameters& table, const Mesh& mesh,
                    std::optional<int> compute_capability, const Decisions* measured, TrainingShape& shape);
/// Decides the FP8 policy again from measured speedups (quantize.linear.float8.auto; float8_ratios.h).
void apply_measured_float8(Experiment& experiment, const Decisions& measured);

/// Names of the FP8 weights that ranks gather in the compute type and then quantize as a whole.
std::vector<std::string> weights_gathered_as_values(const Experiment& experiment);
/// True if the run decides whether codes of gathered FP8 weights stay through the step
/// (apps/decide/decide.h): the configuration leaves it open, and there are such weights that do not stay
/// whole anyway.
bool leaves_weight_codes_open(const Experiment& experiment);

}  // namespace ottava
