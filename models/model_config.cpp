#include "models/model_config.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/contains.h"

namespace ottava {

void declare(config::Section& s, RopeScalingConfig& c) {
  s.meaning("longer contexts by stretching low RoPE frequencies (Llama 3.1); null: the flavor's");
  s.field("factor", c.factor)
      .at_least(1)
      .meaning("how much the longest wavelengths are stretched; 1: no scaling");
  s.field("low_freq_factor", c.low_freq_factor)
      .above(0)
      .meaning("wavelengths above original / this are stretched in full");
  s.field("high_freq_factor", c.high_freq_factor).above(0).meaning("wavelengths below original / this stay");
  s.field("original_max_position_embeddings", c.original_max_position_embeddings)
      .at_least(1)
      .unit("tokens")
      .meaning("context that the model was first trained for");
}

namespace {

/// What a flavor gives and a key replaces.
void declare_dimensions(config::Section& s, ModelConfig& c) {
  constexpr double kMostDim = 1 << 20, kMostLayers = 4096;
  s.field("dim", c.dim).range(1, kMostDim).meaning("width of the residual stream");
  s.field("n_layers", c.n_layers).range(1, kMostLayers).meaning("blocks");
  s.field("n_heads", c.n_heads).range(1, kMostDim).meaning("query heads");
  s.field("n_kv_heads", c.n_kv_heads)
      .range(1, kMostDim)
      .meaning("key and value heads (grouped-query attention)");
  s.field("head_dim", c.head_dim).range(2, 1024).meaning("width of a head; null: dim / n_heads");
  s.field("ffn_dim", c.ffn_dim)
      .range(1, 8 * kMostDim)
      .meaning(
          "width of the feed-forward; null: int(8 dim / 3) x ffn_dim_multiplier, rounded up to "
          "multiple_of");
  s.field("ffn_dim_multiplier", c.ffn_dim_multiplier).above(0).meaning("see ffn_dim");
  s.field("multiple_of", c.multiple_of).range(1, kMostDim).meaning("see ffn_dim");
  s.field("vocab_size", c.vocab_size)
      .range(0, 1 << 24)
      .unit("tokens")
      .meaning("rows of embedding and output; 0: the tokenizer's");
}

}  // namespace

void declare(config::Section& s, ModelConfig& c) {
  s.meaning("architecture; a flavor gives all dimensions, and each key set here replaces one");
  s.field("name", c.name).one_of({"llama3"}).meaning("family");
  s.field("flavor", c.flavor)
      .meaning("size: debugmodel, 1B, 3B, 8B, 70B, 405B; hf: from config.json in hf_assets_path");
  s.field("hf_assets_path", c.hf_assets_path)
      .meaning(
          "folder with tokenizer.json (and config.json, weights), relative to the working directory, else to "
          "this file");
  using Initial = ModelConfig::Initial;
  s.choice("initial", c.initial, {{"auto", Initial::automatic}, {"random", Initial::random}})
      .meaning(
          "where weights begin without a checkpoint: auto: flavor hf takes those in hf_assets_path, others "
          "are random");
  s.field("converters", c.converters)
      .one_of({"quantize.linear.float8"})
      .rename_value("float8", "quantize.linear.float8")
      .refuse_value("quantize.linear.mx",
                    "use quantize.linear.float8 with quantize.linear.float8.recipe_name mxfp8")
      .refuse_value("mx", "use quantize.linear.float8 with quantize.linear.float8.recipe_name mxfp8")
      .refuse_value("quantize.grouped_mm.float8",
                    "the models here are dense: there are no grouped multiplications")
      .refuse_value("quantize.grouped_mm.mx",
                    "the models here are dense: there are no grouped multiplications")
      .meaning("changes made to the model before training");
  declare_dimensions(s, c);
  s.field("rope_theta", c.rope_theta).above(0).meaning("base of the rotary frequencies");
  s.field("norm_eps", c.norm_eps).above(0).meaning("added to the mean square in RMSNorm");
  s.field("tie_embeddings", c.tie_embeddings).meaning("the output layer is the embedding");
  s.field("qkv_bias", c.qkv_bias).meaning("biases of query, key and value (Qwen2)");
  s.field("qk_norm", c.qk_norm).meaning("RMSNorm of every query and key head (Qwen3)");
  s.field("max_seq_len", c.max_seq_len)
      .range(1, 1 << 30)
      .unit("tokens")
      .meaning("longest sequence that RoPE is meant for");
  using Mask = ModelConfig::AttnMask;
  s.choice("attn_mask_type", c.attn_mask_type,
           {{"causal", Mask::causal}, {"block_causal", Mask::block_causal}})
      .meaning("block_causal keeps documents of a packed sequence apart");
  s.field("loss_chunk_tokens", c.loss_chunk_tokens)
      .range(0, 1 << 24)
      .unit("tokens")
      .meaning(
          "tokens whose logits exist at once; 0: on a GPU the most of 4096, 2048 and 1024 that its memory "
          "allows, else 1024");
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
  if (c.head_dim && *c.head_dim % 2 != 0) {
    problems.add("model.head_dim", "head_dim {} is odd; rotary embedding turns pairs", *c.head_dim);
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
