#include "models/llama/read_hf_config.h"

#include <utility>

#include "core/error.h"
#include "core/io/file.h"

namespace ottava {
namespace {

/// Extents, by their names here and in HF.
constexpr std::pair<int64_t LlamaConfig::*, int64_t HfConfig::*> kExtents[] = {
    {&LlamaConfig::dim, &HfConfig::hidden_size},
    {&LlamaConfig::layers, &HfConfig::num_hidden_layers},
    {&LlamaConfig::heads, &HfConfig::num_attention_heads},
    {&LlamaConfig::kv_heads, &HfConfig::num_key_value_heads},
    {&LlamaConfig::head_dim, &HfConfig::head_dim},
    {&LlamaConfig::ffn_dim, &HfConfig::intermediate_size},
    {&LlamaConfig::vocab_size, &HfConfig::vocab_size}};

HfConfig hf_config_in(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return parse_hf_config(read_file(path), path);
}

}  // namespace

LlamaConfig llama_config_of(const HfConfig& hf) {
  LlamaConfig config;
  for (const auto& [here, there] : kExtents) config.*here = hf.*there;
  config.norm_eps = static_cast<float>(hf.rms_norm_eps);
  config.rope_theta = hf.rope_theta;
  config.rope_scaling = hf.rope_scaling;
  config.tied_embeddings = hf.tie_word_embeddings;
  config.qkv_bias = hf.family == HfFamily::qwen2;
  config.qk_norm = hf.family == HfFamily::qwen3;
  config.mistral = hf.family == HfFamily::mistral;
  config.sliding_window = hf.sliding_window;
  return config;
}

HfFamily hf_family_of(const LlamaConfig& config) {
  if (config.qkv_bias && config.qk_norm) {
    fail<ConfigError>(
        "model",
        "qkv_bias and qk_norm are both set, which no Hugging Face model family supports: choose one of them");
  }
  if (config.qkv_bias) return HfFamily::qwen2;
  if (config.qk_norm) return HfFamily::qwen3;
  return config.mistral ? HfFamily::mistral : HfFamily::llama;
}

HfConfig hf_config_of(const LlamaConfig& config, int64_t max_position_embeddings) {
  HfConfig hf;
  hf.family = hf_family_of(config);
  for (const auto& [here, there] : kExtents) hf.*there = config.*here;
  hf.max_position_embeddings = max_position_embeddings;
  // The decimal number that was meant: 1e-05, not 9.999999747378752e-06.
  hf.rms_norm_eps = std::stod(fmt::format("{}", config.norm_eps));
  hf.rope_theta = config.rope_theta;
  hf.rope_scaling = config.rope_scaling;
  hf.tie_word_embeddings = config.tied_embeddings;
  if (hf.family == HfFamily::mistral) hf.sliding_window = config.sliding_window;
  return hf;
}

LlamaConfig read_hf_config(const std::string& folder) { return llama_config_of(hf_config_in(folder)); }

HfPositions read_hf_positions(const std::string& folder) {
  const HfConfig hf = hf_config_in(folder);
  if (hf.sliding_window && *hf.sliding_window < hf.max_position_embeddings)
    return {*hf.sliding_window, "sliding_window"};
  return {hf.max_position_embeddings, "max_position_embeddings"};
}

}  // namespace ottava
