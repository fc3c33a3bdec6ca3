#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "models/hf_config.h"

namespace ottava {

/// What a family is called in a config.json, and the values that `transformers` takes where one leaves them
/// out. Key/value heads 0: as many as heads; head_dim 0: hidden_size / heads.
struct HfFamilyRow {
  HfFamily family;
  std::string_view model_type, architecture;
  int64_t key_value_heads, head_dim, max_position_embeddings;
};
/// In the order of HfFamily.
inline constexpr HfFamilyRow kHfFamilies[] = {
    {HfFamily::llama, "llama", "LlamaForCausalLM", 0, 0, 2048},
    {HfFamily::qwen2, "qwen2", "Qwen2ForCausalLM", 32, 0, 32768},
    {HfFamily::qwen3, "qwen3", "Qwen3ForCausalLM", 32, 128, 32768},
    {HfFamily::mistral, "mistral", "MistralForCausalLM", 8, 0, 131072}};
/// Where a file of Mistral has no sliding_window; null is none.
inline constexpr int64_t kMistralWindow = 4096;
/// What transformers 5 refuses in some families, or fails with, where it is null instead of left out.
inline constexpr std::pair<HfFamily, std::string_view> kNeverNullIn[] = {
    {HfFamily::llama, "attention_bias"},
    {HfFamily::llama, "mlp_bias"},
    {HfFamily::qwen2, "head_dim"},
    {HfFamily::qwen2, "use_sliding_window"},
    {HfFamily::qwen3, "head_dim"},
    {HfFamily::qwen3, "use_sliding_window"},
    {HfFamily::qwen3, "attention_bias"},
    {HfFamily::mistral, "num_key_value_heads"},
    {HfFamily::mistral, "attention_dropout"},
    {HfFamily::mistral, "layer_types"}};
inline const HfFamilyRow& row_of(HfFamily family) { return kHfFamilies[static_cast<size_t>(family)]; }

}  // namespace ottava
