#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/ops/rope.h"

namespace ottava {

/// The shape of a Llama-family model. Qwen2 sets `qkv_bias`, Qwen3 `qk_norm`; everything else is the same. A
/// `mistral` computes what a Llama does, and keeps its name; with a `sliding_window` no sequence is longer.
struct LlamaConfig {
  int64_t dim = 256;
  int64_t layers = 6;
  int64_t heads = 16;
  int64_t kv_heads = 16;
  int64_t head_dim = 16;
  int64_t ffn_dim = 768;
  int64_t vocab_size = 2048;
  float norm_eps = 1e-5f;
  double rope_theta = 500000;
  std::optional<RopeScaling> rope_scaling;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool mistral = false;
  std::optional<int64_t> sliding_window;
};

/// One of debugmodel, 1B, 3B, 8B, 70B, 405B (the table in models/README.md). Throws ConfigError with the list
/// for any other name.
LlamaConfig llama_flavor(std::string_view name);

/// Width of the SwiGLU: int(8 dim / 3), times `multiplier` if > 0, rounded up to a multiple of `multiple_of`.
int64_t llama_ffn_dim(int64_t dim, double multiplier, int64_t multiple_of);

/// Throws ConfigError for shapes that cannot be built: heads that kv heads do not divide, a head_dim that
/// attention does not take, more parameters than 64 bits could count in bytes, a RoPE scaling whose factors
/// contradict each other, and so on.
void validate(const LlamaConfig& config);

int64_t parameter_count(const LlamaConfig& config);
/// FLOPs as TorchTitan counts them: 6 (N - N_embedding) + 12 L H head_dim T. A tied matrix counts once, as
/// the output layer.
double model_flops_per_token(const LlamaConfig& config, int64_t sequence);

}  // namespace ottava
