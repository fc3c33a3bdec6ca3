#pragma once

#include <vector>

#include "models/llama/llama_config.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// Indices into LlamaParameters::specs; -1 where the model has no such parameter.
struct LlamaBlockParameters {
  int attention_norm = -1, wqkv = -1, wqkv_bias = -1, q_norm = -1, k_norm = -1, wo = -1;
  int ffn_norm = -1, w13 = -1, w2 = -1;
};

/// The parameter table of a model. Units in forward order: 0 is the embedding, 1..layers are the blocks, the
/// last is norm and output. With tied embeddings `output == embedding`, which stays in unit 0 and is gathered
/// for both uses.
struct LlamaParameters {
  std::vector<ParameterSpec> specs;
  int embedding = -1, norm = -1, output = -1;
  std::vector<LlamaBlockParameters> blocks;
  int units = 0;
};

/// Names, shapes, initialisation (models/README.md), tensor-parallel placement and HF names of every
/// parameter.
LlamaParameters llama_parameters(const LlamaConfig& config);

}  // namespace ottava
