#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "models/hf_config.h"
#include "models/llama/llama_config.h"

namespace ottava {

/// The model that an HF config describes: Qwen2 has biases on q, k and v, Qwen3 norms on q and k, Mistral a
/// window.
LlamaConfig llama_config_of(const HfConfig& config);

/// The family of such a model. Throws ConfigError for one with both biases and norms on q and k: no HF family
/// has both.
HfFamily hf_family_of(const LlamaConfig& config);
/// The HF config with which our weights compute the same numbers. Throws as hf_family_of().
HfConfig hf_config_of(const LlamaConfig& config, int64_t max_position_embeddings);

/// The model of `folder`/config.json. Throws FileError.
LlamaConfig read_hf_config(const std::string& folder);
/// The longest sequence that a model is meant for, and the member of config.json that says so.
struct HfPositions {
  int64_t most = 0;
  std::string_view limit;  ///< "max_position_embeddings", or "sliding_window" where that is less
};
/// Of `folder`/config.json. Throws FileError.
HfPositions read_hf_positions(const std::string& folder);

}  // namespace ottava
