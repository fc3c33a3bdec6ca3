#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/activation_checkpoint_config.h"
#include "models/llama/llama_config.h"
#include "models/llama/recompute.h"
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
/// for a vocabulary smaller than the tokenizer's, for sequences longer than model.max_seq_len, and for a
/// model of no Hugging Face family.
LlamaConfig resolve_model(const ModelConfig& config, const std::optional<LlamaConfig>& base,
                          int64_t tokenizer_vocab, LongestSequence longest,
                          std::vector<ModelValue>* values = nullptr);

/// What each block computes again: nothing (none), elementwise outputs (selective "op"), all but attention
/// (selective "all_but_attention"), every n-th block whole (selective n), or all blocks whole (full). Of auto
/// it is the first of recompute_choices().
std::vector<Recompute> resolve_recompute(const ActivationCheckpointConfig& config, int64_t layers);

/// What activation_checkpoint.mode auto chooses from, with what each block computes again: the fastest, which
/// takes most memory, comes first, the one that takes least comes last. Of few blocks some are alike.
struct RecomputeChoice {
  std::string name;  ///< "op, all but attention of 1 in 4 blocks"
  std::vector<Recompute> blocks;
  bool is_mode = false;  ///< the same in all blocks, as another mode has it
};
std::vector<RecomputeChoice> recompute_choices(int64_t layers);

}  // namespace ottava
