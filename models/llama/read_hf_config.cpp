#include "models/llama/read_hf_config.h"

#include "core/error.h"
#include "core/io/file.h"

namespace ottava {

LlamaConfig llama_config_of(const HfConfig& hf) {
  LlamaConfig config;
  config.dim = hf.hidden_size;
  config.layers = hf.num_hidden_layers;
  config.heads = hf.num_attention_heads;
  config.kv_heads = hf.num_key_value_heads;
  config.head_dim = hf.head_dim;
  config.ffn_dim = hf.intermediate_size;
  config.vocab_size = hf.vocab_size;
  config.norm_eps = static_cast<float>(hf.rms_norm_eps);
  config.rope_theta = hf.rope_theta;
  config.rope_scaling = hf.rope_scaling;
  config.tied_embeddings = hf.tie_word_embeddings;
  config.qkv_bias = hf.family == HfFamily::qwen2;
  config.qk_norm = hf.family == HfFamily::qwen3;
  return config;
}

HfConfig hf_config_of(const LlamaConfig& config, int64_t max_position_embeddings) {
  if (config.qkv_bias && config.qk_norm) {
    fail<ConfigError>("model",
                      "qkv_bias and qk_norm together have no Hugging Face family: choose one of them");
  }
  HfConfig hf;
  hf.family = config.qkv_bias ? HfFamily::qwen2 : config.qk_norm ? HfFamily::qwen3 : HfFamily::llama;
  hf.hidden_size = config.dim;
  hf.num_hidden_layers = config.layers;
  hf.num_attention_heads = config.heads;
  hf.num_key_value_heads = config.kv_heads;
  hf.head_dim = config.head_dim;
  hf.intermediate_size = config.ffn_dim;
  hf.vocab_size = config.vocab_size;
  hf.max_position_embeddings = max_position_embeddings;
  // The decimal number that was meant: 1e-05, not 9.999999747378752e-06.
  hf.rms_norm_eps = std::stod(fmt::format("{}", config.norm_eps));
  hf.rope_theta = config.rope_theta;
  hf.rope_scaling = config.rope_scaling;
  hf.tie_word_embeddings = config.tied_embeddings;
  return hf;
}

LlamaConfig read_hf_config(const std::string& folder) {
  std::string path = folder + "/config.json";
  return llama_config_of(parse_hf_config(read_file(path), path));
}

}  // namespace ottava
