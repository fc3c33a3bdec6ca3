#include "models/model_config.h"

#include <fmt/core.h>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/contains.h"
#include "core/ops/attention/attention.h"
#include "models/rope_members.h"

namespace ottava {

void declare(config::Section& s, RopeScalingConfig& c) {
  s.meaning(
      "RoPE scaling for longer contexts; null: that of config.json or of the flavor, which setting dim turns "
      "off; for a model without scaling, setting one key turns it on, of type llama3 with Llama 3.1's values "
      "for the others");
  std::vector<std::pair<std::string, RopeScaling::Type>> types;
  for (const RopeTypeName& one : kRopeTypes) types.emplace_back(one.name, one.type);
  s.choice(
      "rope_type", c.rope_type, types,
      "how frequencies are scaled; llama3: long wavelengths, as in Llama 3.1; linear: all alike; yarn: those "
      "of few rotations within the original length, and cosines and sines grow; null: that of config.json, "
      "else llama3; linear needs factor, yarn also original_max_position_embeddings, where config.json has "
      "another type");
  s.field("factor", c.factor,
          "factor by which long wavelengths are stretched, or all (linear); 1: no scaling")
      .range(1, 1 << 16);
  s.field("low_freq_factor", c.low_freq_factor,
          "llama3: wavelengths longer than original_max_position_embeddings / low_freq_factor are stretched "
          "by the full factor")
      .above(0);
  s.field("high_freq_factor", c.high_freq_factor,
          "llama3: wavelengths shorter than original_max_position_embeddings / high_freq_factor are left as "
          "they are")
      .above(0);
  s.field("original_max_position_embeddings", c.original_max_position_embeddings,
          "llama3 and yarn: context length before scaling")
      .range(1, 1 << 30)
      .unit("tokens");
  s.field("beta_fast", c.beta_fast,
          "yarn: what turns more often than this within the original length is left as it is; null: that of "
          "config.json, else 32")
      .above(0);
  s.field("beta_slow", c.beta_slow,
          "yarn: what turns less often than this within the original length is stretched by the full factor; "
          "null: that of config.json, else 1")
      .above(0);
  s.field("attention_factor", c.attention_factor,
          "yarn: factor of cosines and sines, so that scores grow by its square; null: that of config.json "
          "(or of its mscale and mscale_all_dim), else 1 + ln(factor) / 10")
      .above(0);
  s.field(
      "truncate", c.truncate,
      "yarn: what lies between beta_fast and beta_slow begins and ends at whole pairs of dimensions; null: "
      "that of config.json, else true");
}

namespace {

/// What a flavor gives and a key replaces.
void declare_dimensions(config::Section& s, ModelConfig& c) {
  constexpr double kMostDim = 1 << 20, kMostMultiplier = 4096;
  s.field("dim", c.dim, "model width (hidden size)").range(1, kMostDim);
  s.field("n_layers", c.n_layers, "number of transformer blocks").range(1, kMostLayers);
  s.field("n_heads", c.n_heads, "number of query heads").range(1, kMostDim);
  s.field("n_kv_heads", c.n_kv_heads,
          "number of key/value heads, fewer than n_heads for grouped-query attention; null: n_heads if it is "
          "set, else the flavor's")
      .range(1, kMostDim);
  s.field("head_dim", c.head_dim,
          "width of an attention head, a multiple of 8, on a GPU 16, 32, 64 or 128; null: dim / n_heads if "
          "one of them is set, else the flavor's")
      .range(8, kMaxHeadDim);
  s.field("ffn_dim", c.ffn_dim,
          "width of the feed-forward (MLP) layers; null: int(8 dim / 3) x ffn_dim_multiplier, rounded up to "
          "a multiple of multiple_of, if dim or one of these two is set, else the flavor's")
      .range(1, 8 * kMostDim);
  s.field("ffn_dim_multiplier", c.ffn_dim_multiplier,
          "factor of the feed-forward width (see ffn_dim); null: 1")
      .range(0, kMostMultiplier)
      .above(0);
  s.field("multiple_of", c.multiple_of,
          "the feed-forward width is rounded up to a multiple of this (see ffn_dim); null: 256")
      .range(1, kMostDim);
  s.field("vocab_size", c.vocab_size,
          "vocabulary size, the rows of embedding and output layer; 0: the tokenizer's, or for flavor hf "
          "that of config.json")
      .range(0, 1 << 24)
      .unit("tokens");
}

}  // namespace

void declare(config::Section& s, ModelConfig& c) {
  s.meaning(
      "model architecture; the flavor sets every dimension, and each key below that is not null overrides "
      "one");
  s.field("name", c.name, "model family").one_of({"llama3"});
  s.field("flavor", c.flavor,
          "model size (debugmodel, 1B, 3B, 8B, 70B or 405B); hf: read the architecture from config.json in "
          "hf_assets_path");
  s.field("hf_assets_path", c.hf_assets_path,
          "folder with tokenizer.json and, for flavor hf, config.json and the weights; relative to the "
          "working directory or, if not found there, to this file");
  using Initial = ModelConfig::Initial;
  s.choice("initial", c.initial, {{"auto", Initial::automatic}, {"random", Initial::random}},
           "initial weights when no checkpoint is loaded; auto: for flavor hf those in hf_assets_path, "
           "otherwise random");
  s.field("converters", c.converters,
          "conversions applied to the model; quantize.linear.float8: train in FP8")
      .one_of({"quantize.linear.float8"})
      .rename_value("float8", "quantize.linear.float8")
      .refuse_value("quantize.linear.mx",
                    "use quantize.linear.float8 with quantize.linear.float8.recipe_name mxfp8")
      .refuse_value("mx", "use quantize.linear.float8 with quantize.linear.float8.recipe_name mxfp8")
      .refuse_value("quantize.grouped_mm.float8", "the models are dense and have no grouped matrix products")
      .refuse_value("quantize.grouped_mm.mx", "the models are dense and have no grouped matrix products");
  declare_dimensions(s, c);
  s.field("rope_theta", c.rope_theta, "base (theta) of the rotary position embedding, RoPE").above(0);
  s.field("norm_eps", c.norm_eps, "epsilon of RMSNorm, added to the mean square")
      .range(1e-30, 1);  // more than 0 as a float too
  s.field("tie_embeddings", c.tie_embeddings, "let the output layer share the weights of the embedding");
  s.field("qkv_bias", c.qkv_bias, "add biases to the query, key and value projections, as Qwen2 does");
  s.field("qk_norm", c.qk_norm,
          "apply RMSNorm to every query and key head, as Qwen3 does; not together with qkv_bias");
  s.field("max_seq_len", c.max_seq_len,
          "longest sequence that RoPE is meant for; a longer training.seq_len or validation.seq_len is "
          "refused; null: no limit, or for flavor hf the max_position_embeddings of config.json")
      .range(1, 1 << 30)
      .unit("tokens");
  using Mask = ModelConfig::AttnMask;
  s.choice(
      "attn_mask_type", c.attn_mask_type, {{"causal", Mask::causal}, {"block_causal", Mask::block_causal}},
      "attention mask; causal: a token sees all earlier tokens of its sequence; block_causal: only those of "
      "its own document (always used for conversations, not possible with formats tokens_u16 and "
      "tokens_u32)");
  s.field("loss_chunk_tokens", c.loss_chunk_tokens,
          "tokens whose logits are in memory at the same time; 0: the largest of 4096, 2048 and 1024 that "
          "fits in GPU memory, 1024 on a CPU")
      .range(0, 1 << 24)
      .unit("tokens");
  s.section("rope_scaling", c.rope_scaling);
}

bool ModelConfig::uses_float8() const { return contains(converters, "quantize.linear.float8"); }

namespace {

// What both keys say is refused with its place in the file; what_is_wrong() looks at the scaling that they
// make together with config.json.
void check(const RopeScalingConfig& rope, config::Problems& problems) {
  if (rope.low_freq_factor && rope.high_freq_factor && *rope.low_freq_factor >= *rope.high_freq_factor) {
    problems.add("model.rope_scaling.high_freq_factor",
                 "high_freq_factor {} must be greater than low_freq_factor {}", *rope.high_freq_factor,
                 *rope.low_freq_factor);
  }
  if (rope.beta_fast && rope.beta_slow && *rope.beta_fast < *rope.beta_slow) {
    problems.add("model.rope_scaling.beta_fast", "beta_fast {} must be at least beta_slow {}",
                 *rope.beta_fast, *rope.beta_slow);
  }
}

}  // namespace

void validate(const ModelConfig& c, config::Problems& problems) {
  if (c.n_heads && c.n_kv_heads && *c.n_heads % *c.n_kv_heads != 0) {
    problems.add("model.n_kv_heads", "n_heads {} is not a multiple of n_kv_heads {} (remainder {})",
                 *c.n_heads, *c.n_kv_heads, *c.n_heads % *c.n_kv_heads);
  }
  if (c.dim && c.n_heads && !c.head_dim && *c.dim % *c.n_heads != 0) {
    problems.add("model.dim",
                 "dim {} is not a multiple of n_heads {} (remainder {}); change one of them or set head_dim",
                 *c.dim, *c.n_heads, *c.dim % *c.n_heads);
  }
  if (c.head_dim && *c.head_dim % 8 != 0) {
    problems.add("model.head_dim", "head_dim {} is not a multiple of 8, as attention requires", *c.head_dim);
  }
  for (const auto& [key, is_set] : {std::pair{"ffn_dim_multiplier", c.ffn_dim_multiplier.has_value()},
                                    std::pair{"multiple_of", c.multiple_of.has_value()}}) {
    if (is_set && c.ffn_dim)
      problems.add(fmt::format("model.{}", key), "ffn_dim {} is set as well; set only one of the two",
                   *c.ffn_dim);
  }
  check(c.rope_scaling, problems);
}

}  // namespace ottava
