#include "models/llama/model_of_section.h"

#include <utility>

#include "core/contains.h"
#include "core/error.h"
#include "models/llama/read_hf_config.h"
#include "models/rope_members.h"

namespace ottava {
namespace {

template <class T, class U>
void replace(T& value, const std::optional<U>& given) {
  if (given) value = static_cast<T>(*given);
}

// Values with where they come from, each noted where it is decided.
struct Origins {
  // `given`: a key that may be absent, or whether it is set.
  template <class T, class Given>
  void note(const char* name, const T& value, const Given& given, std::string_view otherwise) {
    values.push_back({name, fmt::format("{}", value), given ? "" : std::string(otherwise)});
  }
  // A key that replaces one value and nothing else.
  template <class T, class U>
  void take(const char* name, T& value, const std::optional<U>& given, std::string_view otherwise) {
    replace(value, given);
    note(name, value, given, otherwise);
  }
  std::vector<ModelValue> values;
};

void resolve_heads(LlamaConfig& out, const ModelConfig& c, std::string_view from, Origins& origins) {
  replace(out.heads, c.n_heads);
  if (c.n_heads) out.kv_heads = out.heads;  // a flavor's key/value heads belong to its own number of heads
  replace(out.kv_heads, c.n_kv_heads);
  if (c.head_dim) {
    out.head_dim = *c.head_dim;
  } else if (c.dim || c.n_heads) {
    if (out.dim % out.heads != 0) {
      fail<ConfigError>("model", "dim {} is not a multiple of n_heads {}: set model.head_dim", out.dim,
                        out.heads);
    }
    out.head_dim = out.dim / out.heads;
  }
  origins.note("n_heads", out.heads, c.n_heads, from);
  origins.note("n_kv_heads", out.kv_heads, c.n_kv_heads, c.n_heads ? "n_heads" : from);
  origins.note("head_dim", out.head_dim, c.head_dim, c.dim || c.n_heads ? "dim / n_heads" : from);
}

void resolve_feed_forward(LlamaConfig& out, const ModelConfig& c, std::string_view from, Origins& origins) {
  const bool is_derived = c.dim || c.ffn_dim_multiplier || c.multiple_of;
  if (!c.ffn_dim && is_derived)
    out.ffn_dim = llama_ffn_dim(out.dim, c.ffn_dim_multiplier.value_or(0), c.multiple_of.value_or(256));
  origins.take("ffn_dim", out.ffn_dim, c.ffn_dim, is_derived ? "8 dim / 3, rounded up" : from);
}

// A key that `type` has no use for, or that it needs where the model did not have that type.
void check_scaling_key(std::string_view key, bool is_set, RopeScaling::Type type, bool is_new) {
  const bool is_of_type = contains(rope_members(type), key);
  if (is_set && !is_of_type) {
    fail<ConfigError>("model",
                      "rope_scaling.{} is set, which rope type {} does not use: remove it, or set "
                      "model.rope_scaling.rope_type",
                      key, name_of(type));
  }
  const bool is_needed = key == "factor" || key == kOriginalLength;
  if (is_new && type != RopeScaling::Type::llama3 && is_of_type && is_needed && !is_set) {
    fail<ConfigError>("model",
                      "rope type {} needs rope_scaling.{}, of which there is none for this model: set "
                      "model.rope_scaling.{}",
                      name_of(type), key, key);
  }
}

void resolve_rope_scaling(LlamaConfig& out, const RopeScalingConfig& given) {
  if (given == RopeScalingConfig{}) return;
  const RopeScaling defaults{.type = given.rope_type.value_or(out.rope_scaling ? out.rope_scaling->type
                                                                               : RopeScaling::Type::llama3)};
  const bool is_new = !out.rope_scaling || out.rope_scaling->type != defaults.type;
  RopeScaling scaling = is_new ? defaults : *out.rope_scaling;
  const auto take = [&](std::string_view key, auto& value, const auto& of_key) {
    check_scaling_key(key, of_key.has_value(), defaults.type, is_new && given.factor != 1);
    replace(value, of_key);
  };
  take("factor", scaling.factor, given.factor);
  take("low_freq_factor", scaling.low_freq_factor, given.low_freq_factor);
  take("high_freq_factor", scaling.high_freq_factor, given.high_freq_factor);
  take(kOriginalLength, scaling.original_max_position_embeddings, given.original_max_position_embeddings);
  take("beta_fast", scaling.beta_fast, given.beta_fast);
  take("beta_slow", scaling.beta_slow, given.beta_slow);
  take("attention_factor", scaling.attention_factor, given.attention_factor);
  take("truncate", scaling.truncate, given.truncate);
  if (given.attention_factor) scaling.mscale = scaling.mscale_all_dim = 0;  // it stands instead of them
  if (given.factor == 1 && !given.attention_factor) {
    out.rope_scaling.reset();
  } else {
    out.rope_scaling = scaling;
  }
}

std::string scaling_text(const std::optional<RopeScaling>& s) {
  if (!s) return "none";
  std::string text = fmt::format("{}, factor {}", name_of(s->type), s->factor);
  if (s->type == RopeScaling::Type::linear) return text;
  if (s->type == RopeScaling::Type::llama3)
    text += fmt::format(", frequencies {} to {}", s->low_freq_factor, s->high_freq_factor);
  text += fmt::format(", original length {}", s->original_max_position_embeddings);
  if (s->type == RopeScaling::Type::yarn) {
    text += fmt::format(", rotations {} to {}{}, attention factor {:.6g}", s->beta_fast, s->beta_slow,
                        s->truncate ? "" : ", not truncated", attention_factor_of(*s));
  }
  return text;
}

void resolve_vocabulary(LlamaConfig& out, const ModelConfig& c, bool has_config_json,
                        int64_t tokenizer_vocab) {
  if (c.vocab_size > 0) {
    out.vocab_size = c.vocab_size;
  } else if (!has_config_json && tokenizer_vocab > 0) {
    out.vocab_size = tokenizer_vocab;
  }
  if (out.vocab_size < tokenizer_vocab) {
    fail<ConfigError>("model",
                      "vocab_size {} is smaller than the tokenizer's {}, whose largest ids would have no "
                      "row: raise model.vocab_size or remove it",
                      out.vocab_size, tokenizer_vocab);
  }
}

void require_short_enough(const ModelConfig& c, const LlamaConfig& model, const LongestSequence& longest) {
  if (model.sliding_window && longest.tokens > *model.sliding_window) {
    fail<ConfigError>(
        "model",
        "sequences of {} tokens are longer than sliding_window {} in config.json, and attention within a "
        "window is not supported: lower {} to that, or set sliding_window to null there, if the model shall "
        "see whole sequences from now on",
        longest.tokens, *model.sliding_window, longest.key);
  }
  if (c.max_seq_len && longest.tokens > *c.max_seq_len) {
    fail<ConfigError>("model",
                      "sequences of {} tokens are longer than model.max_seq_len {}: lower {}, or raise "
                      "model.max_seq_len and set model.rope_scaling",
                      longest.tokens, *c.max_seq_len, longest.key);
  }
}

}  // namespace

LlamaConfig model_of_section(const ModelConfig& c, const std::optional<LlamaConfig>& base,
                             int64_t tokenizer_vocab, LongestSequence longest,
                             std::vector<ModelValue>* values) {
  LlamaConfig out = base ? *base : llama_flavor(c.flavor);
  const std::string from = base ? "config.json" : "flavor " + c.flavor,
                    rope = base || !c.dim ? from : "default";
  Origins origins;
  if (c.dim && !base) out.rope_scaling.reset();  // a flavor's scaling belongs to its own training
  origins.take("dim", out.dim, c.dim, from);
  origins.take("n_layers", out.layers, c.n_layers, from);
  resolve_heads(out, c, from, origins);
  resolve_feed_forward(out, c, from, origins);
  resolve_vocabulary(out, c, base.has_value(), tokenizer_vocab);
  origins.note("vocab_size", out.vocab_size, c.vocab_size > 0,
               base || tokenizer_vocab == 0 ? from : "the tokenizer");
  origins.take("rope_theta", out.rope_theta, c.rope_theta, rope);
  resolve_rope_scaling(out, c.rope_scaling);
  origins.note("rope_scaling", scaling_text(out.rope_scaling), c.rope_scaling != RopeScalingConfig{}, rope);
  origins.take("norm_eps", out.norm_eps, c.norm_eps, from);
  origins.take("tie_embeddings", out.tied_embeddings, c.tie_embeddings, from);
  origins.take("qkv_bias", out.qkv_bias, c.qkv_bias, from);
  origins.take("qk_norm", out.qk_norm, c.qk_norm, from);
  require_short_enough(c, out, longest);
  validate(out);
  hf_family_of(out);  // of none could a checkpoint be saved
  if (values) *values = std::move(origins.values);
  return out;
}

}  // namespace ottava
