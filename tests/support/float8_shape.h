#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/step/training_engine.h"
#include "fp8/float8_config.h"

namespace ottava::test {

/// The step with FP8 as this section asks for it, for tensor-parallel groups of `tp` ranks, and bf16
/// otherwise. Every layout may run it: a micro-batch is taken to be one sequence, and larger ones are
/// multiples of that. `compute_capability` is that of the GPU that multiplies; absent: a CPU, which has every
/// recipe.
TrainingShape in_float8(TrainingShape shape, const Float8Config& config, int tp = 1,
                        std::optional<int> compute_capability = {});

/// A model whose matrices all run in FP8 in any recipe, with up to two tensor-parallel ranks: dimensions are
/// multiples of 64, some larger than a block of 128, no two equal.
TrainingShape float8_step();

/// The same with matrices whose gradients, except wo's, are large enough for collectives of their own.
TrainingShape wide_float8_step();

/// All recipes by name.
std::vector<std::string> all_recipes();

}  // namespace ottava::test
