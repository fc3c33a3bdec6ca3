#include "models/llama/llama_config.h"

#include <string>

#include "core/error.h"
#include "core/listed.h"
#include "core/sum_of.h"
#include "models/llama/llama_parameters.h"

namespace ottava {
namespace {

struct Flavor {
  std::string_view name;
  int64_t dim, layers, heads, kv_heads, ffn_dim, vocab_size;
  bool tied;
  double rope_factor;  ///< Llama 3.1 and 3.2 scale RoPE, 3.2 by 32
};
constexpr Flavor kFlavors[] = {
    {"debugmodel", 256, 6, 16, 16, 768, 2048, false, 8},
    {"1B", 2048, 16, 32, 8, 8192, 128256, true, 32},
    {"3B", 3072, 28, 24, 8, 8192, 128256, true, 32},
    {"8B", 4096, 32, 32, 8, 14336, 128256, false, 8},
    {"70B", 8192, 80, 64, 8, 28672, 128256, false, 8},
    {"405B", 16384, 126, 128, 8, 53248, 128256, false, 8},
};

}  // namespace

LlamaConfig llama_flavor(std::string_view name) {
  for (const Flavor& f : kFlavors) {
    if (f.name != name) continue;
    LlamaConfig config;
    config.dim = f.dim;
    config.layers = f.layers;
    config.heads = f.heads;
    config.kv_heads = f.kv_heads;
    config.head_dim = f.dim / f.heads;
    config.ffn_dim = f.ffn_dim;
    config.vocab_size = f.vocab_size;
    config.tied_embeddings = f.tied;
    config.rope_scaling = RopeScaling{.factor = f.rope_factor};
    return config;
  }
  fail<ConfigError>("model", "flavor '{}' is unknown: expected one of {}, or hf (config.json's dimensions)",
                    name, listed(kFlavors, [](const Flavor& f) { return f.name; }));
}

int64_t llama_ffn_dim(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t width = 8 * dim / 3;
  if (multiplier > 0) width = static_cast<int64_t>(multiplier * width);
  return (width + multiple_of - 1) / multiple_of * multiple_of;
}

void validate(const LlamaConfig& c) {
  auto positive = [](std::string_view name, int64_t value) {
    if (value <= 0) fail<ConfigError>("model", "{} is {}, expected at least 1", name, value);
  };
  positive("dim", c.dim);
  positive("n_layers", c.layers);
  positive("n_heads", c.heads);
  positive("n_kv_heads", c.kv_heads);
  positive("head_dim", c.head_dim);
  positive("ffn_dim", c.ffn_dim);
  positive("vocab_size", c.vocab_size);
  if (c.heads % c.kv_heads != 0) {
    fail<ConfigError>("model",
                      "n_heads {} is not a multiple of n_kv_heads {}: each key/value head serves n_heads / "
                      "n_kv_heads query heads",
                      c.heads, c.kv_heads);
  }
  if (c.head_dim % 8 != 0) {
    fail<ConfigError>("model",
                      "head_dim {} is not a multiple of 8 (dim {} / n_heads {}): choose other head counts or "
                      "set model.head_dim",
                      c.head_dim, c.dim, c.heads);
  }
}

int64_t parameter_count(const LlamaConfig& config) {
  return sum_of(llama_parameters(config).specs, &ParameterSpec::numel);
}

double model_flops_per_token(const LlamaConfig& c, int64_t sequence) {
  double embedding = c.tied_embeddings ? 0 : c.vocab_size * c.dim;
  double attention = 12.0 * (c.layers * c.heads * c.head_dim) * sequence;
  return 6 * (parameter_count(c) - embedding) + attention;
}

}  // namespace ottava
