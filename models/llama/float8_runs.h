#pragma once

#include <cstdint>

#include "fp8/policy.h"
#include "models/float8_state.h"
#include "models/llama/llama_model.h"

namespace ottava {

/// What of a step decides how often each product of the policy runs.
struct Float8StepCounts {
  int64_t micro_batches = 1;
  int64_t tokens = 0;  ///< of a micro-batch, of all tensor-parallel ranks
};

/// FP8 products that a step of this policy runs for one of its layers: forward and both of backward once per
/// micro-batch as its recipe has them, forward again where its block is recomputed (but not w2's, whose
/// result backward does not need), the output layer's once per chunk of the loss.
Float8Runs float8_runs(const fp8::GemmDecision& decision, const LlamaModelOptions& options,
                       const Float8StepCounts& step);

/// Compares what ran since begin_step() with the policy. NumericsError names the layers that ran in another
/// precision or recipe, or another number of times, with the counts.
void check_float8_runs(const fp8::Policy& policy, const LlamaModelOptions& options,
                       const Float8StepCounts& step, const Float8State& state);

}  // namespace ottava
