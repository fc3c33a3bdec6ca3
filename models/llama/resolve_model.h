#pragma once

#include <optional>

#include "models/activation_checkpoint_config.h"
#include "models/llama/llama_block.h"
#include "models/llama/llama_config.h"
#include "models/model_config.h"

namespace ottava {

/// The model that section `model` describes: the flavor's dimensions, or those of an HF config.json (`base`),
/// with every key that is set in their place, and the tokenizer's vocabulary unless model.vocab_size is set.
/// Throws ConfigError, also for a vocabulary smaller than the tokenizer's and for sequences longer than
/// model.max_seq_len.
LlamaConfig resolve_model(const ModelConfig& config, const std::optional<LlamaConfig>& base,
                          int64_t tokenizer_vocab, int64_t sequence);

/// What each block computes again: none; selective "op": elementwise outputs; selective n: every n-th block
/// whole; full.
std::vector<Recompute> resolve_recompute(const ActivationCheckpointConfig& config, int64_t layers);

}  // namespace ottava
