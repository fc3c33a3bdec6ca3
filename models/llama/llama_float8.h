#pragma once

#include "fp8/policy.h"
#include "models/float8_state.h"
#include "models/llama/llama_head.h"
#include "models/llama/llama_parameters.h"

namespace ottava {

/// The products that the policy decides on: every linear layer of the model with its parts, with global and
/// rank-local sizes, and the output layer. `local_tokens`: tokens of a micro-batch, gathered over
/// tensor-parallel ranks.
fp8::PolicyInputs llama_policy_inputs(const LlamaParameters& table, int tensor_parallel_size,
                                      int64_t local_tokens);

/// What a policy means for the parts of a model.
struct LlamaFloat8 {
  std::vector<LlamaBlockPieces> blocks;  ///< empty without FP8
  LlamaHead::Output output;
  Float8Weights::Options weights;
  Float8State::Options state;
  bool is_on() const { return !state.products.empty(); }
};
/// Weights are gathered as codes where the configuration asks for it and why_gathered_whole() has no
/// objection.
LlamaFloat8 llama_float8(const LlamaParameters& table, const fp8::Policy& policy, const Float8Config& config,
                         int tensor_parallel_size);

/// Why FSDP with so many shards gathers this weight in the compute type although codes are asked for; empty
/// if it gathers codes.
std::string why_gathered_whole(const fp8::GemmDecision& decision, int shards);
/// "FSDP gathers 20 of 24 FP8 weights as codes; in bf16: 4 (layers.0.attention.wo: 48 rows / 3 shards = 16,
/// ...)": the first weight of each reason.
std::string float8_gathers_text(const fp8::Policy& policy, int shards);

/// How many ranks share weights and products, and what one of them sends in a step.
struct Float8Ranks {
  int shards = 1, tensor_parallel = 1;
  const CommStats& traffic;
};
/// One line for each thing that travels in FP8, and one with the reason for each setting of the section that
/// changes nothing here.
std::vector<std::string> float8_remarks(const fp8::Policy& policy, const Float8Config& config,
                                        const Float8Ranks& ranks);

}  // namespace ottava
