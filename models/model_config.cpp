#include "models/model_config.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/contains.h"
#include "core/ops/attention/attention.h"

namespace ottava {

void declare(config::Section& s, RopeScalingConfig& c) {
  s.meaning(
      "longer contexts by stretching low RoPE frequencies (Llama 3.1); null: the flavor's; one key turns it "
      "on where the flavor has none, with Llama 3.1's values of the others");
  s.field("factor", c.factor, "how much the longest wavelengths are stretched; 1: no scaling").at_least(1);
  s.field("low_freq_factor", c.low_freq_factor, "wavelengths above original / this are stretched in full")
      .above(0);
  s.field("high_freq_factor", c.high_freq_factor, "wavelengths below original / this stay").above(0);
  s.field("original_max_position_embeddings", c.original_max_position_embeddings,
          "context that the model was first trained for")
      .at_least(1)
      .unit("tokens");
}

namespace {

/// What a flavor gives and a key replaces.
void declare_dimensions(config::Section& s, ModelConfig& c) {
  constexpr double kMostDim = 1 << 20, kMostLayers = 4096;
  s.field("dim", c.dim, "width of the residual stream").range(1, kMostDim);
  s.field("n_layers", c.n_layers, "blocks").range(1, kMostLayers);
  s.field("n_heads", c.n_heads, "query heads").range(1, kMostDim);
  s.field("n_kv_heads", c.n_kv_heads, "key and value heads (grouped-query attention)").range(1, kMostDim);
  s.field("head_dim", c.head_dim,
          "width of a head, a multiple of 8; on a GPU 16, 32, 64 or 128; null: dim / n_heads")
      .range(8, kMaxHeadDim);
  s.field("ffn_dim", c.ffn_dim,
          "width of the feed-forward; null: int(8 dim / 3) x ffn_dim_multiplier, rounded up to multiple_of")
      .range(1, 8 * kMostDim);
  s.field("ffn_dim_multiplier", c.ffn_dim_multiplier, "see ffn_dim").above(0);
  s.field("multiple_of", c.multiple_of, "see ffn_dim").range(1, kMostDim);
  s.field("vocab_size", c.vocab_size, "rows of embedding and output; 0: the tokenizer's")
      .range(0, 1 << 24)
      .unit("tokens");
}

}  // namespace

void declare(config::Section& s, ModelConfig& c) {
  s.meaning("architecture; a flavor gives all dimensions, and each key set here replaces one");
  s.field("name", c.name, "family").one_of({"llama3"});
  s.field("flavor", c.flavor,
          "size: debugmodel, 1B, 3B, 8B, 70B, 405B; hf: from config.json in hf_assets_path");
  s.field("hf_assets_path", c.hf_assets_path,
          "folder with tokenizer.json (and config.json, weights), relative to the working directory, else to "
          "this file");
  using Initial = ModelConfig::Initial;
  s.choice("initial", c.initial, {{"auto", Initial::automatic}, {"random", Initial::random}},
           "where weights begin without a checkpoint: auto: flavor hf takes those in hf_assets_path, others "
           "are random");
  s.field("converters", c.converters, "changes made to the model before training")
      .one_of({"quantize.linear.float8"})
      .rename_value("float8", "quantize.linear.float8")
      .refuse_value("quantize.linear.mx",
                    "use quantize.linear.float8 with quantize.linear.float8.recipe_name mxfp8")
      .refuse_value("mx", "use quantize.linear.float8 with quantize.linear.float8.recipe_name mxfp8")
      .refuse_value("quantize.grouped_mm.float8",
                    "the models here are dense: there are no grouped multiplications")
      .refuse_value("quantize.grouped_mm.mx",
                    "the models here are dense: there are no grouped multiplications");
  declare_dimensions(s, c);
  s.field("rope_theta", c.rope_theta, "base of the rotary frequencies").above(0);
  s.field("norm_eps", c.norm_eps, "added to the mean square in RMSNorm").above(0);
  s.field("tie_embeddings", c.tie_embeddings, "the output layer is the embedding");
  s.field("qkv_bias", c.qkv_bias, "biases of query, key and value (Qwen2)");
  s.field("qk_norm", c.qk_norm, "RMSNorm of every query and key head (Qwen3)");
  s.field("max_seq_len", c.max_seq_len, "longest sequence that RoPE is meant for")
      .range(1, 1 << 30)
      .unit("tokens");
  using Mask = ModelConfig::AttnMask;
  s.choice(
      "attn_mask_type", c.attn_mask_type, {{"causal", Mask::causal}, {"block_causal", Mask::block_causal}},
      "block_causal keeps documents of a packed sequence apart; not with bare token ids, which do not say "
      "where documents begin");
  s.field("loss_chunk_tokens", c.loss_chunk_tokens,
          "tokens whose logits exist at once; 0: on a GPU the most of 4096, 2048 and 1024 that its memory "
          "allows, else 1024")
      .range(0, 1 << 24)
      .unit("tokens");
  s.section("rope_scaling", c.rope_scaling);
}

bool ModelConfig::uses_float8() const { return contains(converters, "quantize.linear.float8"); }

void validate(const ModelConfig& c, config::Problems& problems) {
  if (c.n_heads && c.n_kv_heads && *c.n_heads % *c.n_kv_heads != 0) {
    problems.add("model.n_kv_heads", "n_heads {} is not a multiple of n_kv_heads {} (remainder {})",
                 *c.n_heads, *c.n_kv_heads, *c.n_heads % *c.n_kv_heads);
  }
  if (c.dim && c.n_heads && !c.head_dim && *c.dim % *c.n_heads != 0) {
    problems.add("model.dim", "dim {} is not a multiple of n_heads {} (remainder {}); set head_dim otherwise",
                 *c.dim, *c.n_heads, *c.dim % *c.n_heads);
  }
  if (c.head_dim && *c.head_dim % 8 != 0) {
    problems.add("model.head_dim", "head_dim {} is not a multiple of 8, in which attention computes",
                 *c.head_dim);
  }
  if (c.ffn_dim && c.ffn_dim_multiplier) {
    problems.add("model.ffn_dim_multiplier", "ffn_dim {} is given as well; one of the two decides",
                 *c.ffn_dim);
  }
  const RopeScalingConfig& rope = c.rope_scaling;
  if (rope.low_freq_factor && rope.high_freq_factor && *rope.low_freq_factor >= *rope.high_freq_factor) {
    problems.add("model.rope_scaling.high_freq_factor", "high_freq_factor {} must exceed low_freq_factor {}",
                 *rope.high_freq_factor, *rope.low_freq_factor);
  }
}

}  // namespace ottava
