#include "models/llama/llama_config.h"

#include <algorithm>

#include "core/error.h"
#include "core/ops/attention/attention.h"
#include "core/round_up.h"
#include "core/sum_of.h"
#include "core/text/listed.h"
#include "models/llama/llama_parameters.h"
#include "models/model_config.h"

namespace ottava {
namespace {

struct Flavor {
  std::string_view name;
  LlamaConfig model;
};
// Llama 3.1 and 3.2 scale RoPE, 3.2 by 32.
constexpr RopeScaling kBy8{.factor = 8}, kBy32{.factor = 32};
constexpr Flavor kFlavors[] = {
    {"debugmodel",
     {.dim = 256,
      .layers = 6,
      .heads = 16,
      .kv_heads = 16,
      .head_dim = 16,
      .ffn_dim = 768,
      .vocab_size = 2048,
      .rope_scaling = kBy8}},
    {"1B",
     {.dim = 2048,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .ffn_dim = 8192,
      .vocab_size = 128256,
      .rope_scaling = kBy32,
      .tied_embeddings = true}},
    {"3B",
     {.dim = 3072,
      .layers = 28,
      .heads = 24,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn_dim = 8192,
      .vocab_size = 128256,
      .rope_scaling = kBy32,
      .tied_embeddings = true}},
    {"8B",
     {.dim = 4096,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn_dim = 14336,
      .vocab_size = 128256,
      .rope_scaling = kBy8}},
    {"70B",
     {.dim = 8192,
      .layers = 80,
      .heads = 64,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn_dim = 28672,
      .vocab_size = 128256,
      .rope_scaling = kBy8}},
    {"405B",
     {.dim = 16384,
      .layers = 126,
      .heads = 128,
      .kv_heads = 8,
      .head_dim = 128,
      .ffn_dim = 53248,
      .vocab_size = 128256,
      .rope_scaling = kBy8}},
};

// The bytes of its master weights, gradients and moments still fit 64 bits.
constexpr double kMostParameters = 0x1p58;

// In float64: the integer may not fit 64 bits.
double estimated_parameters(const LlamaConfig& c) {
  const double dim = static_cast<double>(c.dim), head = static_cast<double>(c.head_dim),
               of_block = 2.0 * static_cast<double>(c.heads + c.kv_heads) * head +
                          3.0 * static_cast<double>(c.ffn_dim);
  return dim * (static_cast<double>(c.layers) * of_block + 2.0 * static_cast<double>(c.vocab_size));
}

}  // namespace

LlamaConfig llama_flavor(std::string_view name) {
  const auto flavor = std::ranges::find(kFlavors, name, &Flavor::name);
  if (flavor != std::end(kFlavors)) return flavor->model;
  fail<ConfigError>("model",
                    "flavor '{}' is unknown: expected one of {}, or hf (dimensions from config.json)", name,
                    listed(kFlavors, [](const Flavor& f) { return f.name; }));
}

int64_t llama_ffn_dim(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t width = 8 * dim / 3;
  if (multiplier > 0) width = static_cast<int64_t>(multiplier * width);
  return round_up(width, multiple_of);
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
                      "n_heads {} is not a multiple of n_kv_heads {}: each key/value head must serve a whole "
                      "number of query heads",
                      c.heads, c.kv_heads);
  }
  if (c.head_dim % 8 != 0) {
    fail<ConfigError>("model",
                      "head_dim {} is not a multiple of 8 (dim {} / n_heads {}): choose other head counts or "
                      "set model.head_dim",
                      c.head_dim, c.dim, c.heads);
  }
  if (c.head_dim > kMaxHeadDim) {
    fail<ConfigError>("model",
                      "head_dim {} is more than {}, the most that attention supports (dim {} / n_heads {}): "
                      "choose more heads or set model.head_dim",
                      c.head_dim, kMaxHeadDim, c.dim, c.heads);
  }
  if (c.layers > kMostLayers)
    fail<ConfigError>("model", "n_layers is {}, expected at most {}", c.layers, kMostLayers);
  if (const double parameters = estimated_parameters(c); parameters > kMostParameters) {
    fail<ConfigError>(
        "model",
        "dim {}, ffn_dim {}, n_layers {}, n_heads {} of {} and vocab_size {} make {:.2g} parameters, "
        "expected at most {:.2g}: lower one of them",
        c.dim, c.ffn_dim, c.layers, c.heads, c.head_dim, c.vocab_size, parameters, kMostParameters);
  }
  const std::string wrong = c.rope_scaling ? what_is_wrong(*c.rope_scaling, c.rope_theta) : "";
  if (!wrong.empty()) {
    fail<ConfigError>("model", "rope_scaling: {}: change one of the two, or set both", wrong);
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
