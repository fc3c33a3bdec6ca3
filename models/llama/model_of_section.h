#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/llama/llama_config.h"
#include "models/model_config.h"

namespace ottava {

/// One property of a resolved model and where it comes from.
struct ModelValue {
  std::string name;   ///< a key of section `model`: "n_heads"
  std::string value;  ///< "12"
  std::string
      origin;  ///< empty: the key itself; else "flavor 8B", "config.json", "the tokenizer", "default", ...
};

/// The longest sequences of a run, and the key that asks for them.
struct LongestSequence {
  int64_t tokens = 0;
  std::string_view key;
};

/// The model that section `model` describes: the flavor's dimensions, or those of an HF config.json (`base`),
/// each replaced by its key where that is set, and the tokenizer's vocabulary unless model.vocab_size is set.
/// With model.dim set the model counts as the user's own: RoPE is the default (theta 500,000, no scaling),
/// not the flavor's. `values`, if given, receives every property with its origin. Throws ConfigError, also
/// for a vocabulary smaller than the tokenizer's, for sequences longer than model.max_seq_len or the window
/// of `base`, and for a model of no Hugging Face family.
LlamaConfig model_of_section(const ModelConfig& config, const std::optional<LlamaConfig>& base,
                             int64_t tokenizer_vocab, LongestSequence longest,
                             std::vector<ModelValue>* values = nullptr);

}  // namespace ottava
