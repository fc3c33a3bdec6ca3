#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "core/ops/rope.h"

namespace ottava {

/// Scaling of RoPE frequencies (core/ops/rope.h). Unset members are those of the flavor or of config.json.
struct RopeScalingConfig {
  std::optional<RopeScaling::Type> rope_type;
  std::optional<double> factor;  ///< 1: no scaling
  std::optional<double> low_freq_factor, high_freq_factor;
  std::optional<int64_t> original_max_position_embeddings;
  std::optional<double> beta_fast, beta_slow, attention_factor;
  std::optional<bool> truncate;
  bool operator==(const RopeScalingConfig&) const = default;
};

/// More blocks than any model has.
inline constexpr int64_t kMostLayers = 4096;

/// Section `model`. A flavor gives all dimensions; those set here replace the flavor's. What keys mean:
/// model_config.cpp.
struct ModelConfig {
  enum class AttnMask { causal, block_causal };

  std::string name = "llama3";
  std::string flavor = "debugmodel";  ///< "hf": dimensions from config.json in hf_assets_path
  enum class Initial { automatic, random };
  Initial initial = Initial::automatic;
  std::string hf_assets_path = "./tests/assets/tokenizer";
  std::vector<std::string> converters;

  std::optional<int64_t> dim, n_layers, n_heads, n_kv_heads, head_dim;
  std::optional<int64_t> ffn_dim;  ///< else from dim, ffn_dim_multiplier and multiple_of
  std::optional<double> ffn_dim_multiplier;
  std::optional<int64_t> multiple_of;
  int64_t vocab_size = 0;  ///< 0: the tokenizer's
  std::optional<double> rope_theta, norm_eps;
  std::optional<bool> tie_embeddings, qkv_bias, qk_norm;
  std::optional<int64_t> max_seq_len;
  RopeScalingConfig rope_scaling;
  AttnMask attn_mask_type = AttnMask::causal;
  int64_t loss_chunk_tokens = 0;  ///< 0: chosen
  bool operator==(const ModelConfig&) const = default;

  /// True if FP8 is asked for: `converters` holds quantize.linear.float8.
  bool uses_float8() const;
};

void declare(config::Section& s, RopeScalingConfig& c);
void declare(config::Section& s, ModelConfig& c);
/// Checks what is set explicitly: heads, dimensions, scaling. The model is checked again once the flavor is
/// known.
void validate(const ModelConfig& c, config::Problems& problems);

}  // namespace ottava
