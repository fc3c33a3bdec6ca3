#include "models/hf_config.h"

#include <algorithm>
#include <cmath>

#include "core/contains.h"
#include "core/error.h"
#include "core/io/json.h"
#include "core/text/listed.h"
#include "models/hf_family.h"
#include "models/rope_members.h"

namespace ottava {
namespace {

/// What transformers 5 refuses in every family, or fails with, where it is null instead of left out.
constexpr std::string_view kNeverNull[] = {"max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
                                           "hidden_act"};

// Looks values up with their defaults; a member that is null counts as left out, except where refuse_null()
// says otherwise, as in transformers.
class Reader {
 public:
  Reader(const Json& object, std::string_view where) : object_(object), where_(where) {
    object.as_object(where_);
  }

  const Json* find(std::string_view name) const {
    const Json* value = object_.find(name);
    return !value || value->is_null() ? nullptr : value;
  }
  void refuse_null(std::string_view name) const {
    if (const Json* value = object_.find(name); value && value->is_null())
      fail<FileError>(where_,
                      "{} is null, which transformers does not take for left out: remove it, or write the "
                      "value that the model was trained with",
                      name);
  }
  int64_t size(std::string_view name, std::optional<int64_t> otherwise = {}) const {
    const int64_t size = number(name, otherwise, &Json::as_integer);
    if (size < 1 || size > (int64_t{1} << 31))
      fail<FileError>(where_, "{} is {}, expected 1 to 2^31", name, size);
    return size;
  }
  double positive(std::string_view name, std::optional<double> otherwise = {}) const {
    const double real = number(name, otherwise, &Json::as_number);
    if (!(real > 0) || !std::isfinite(real))
      fail<FileError>(where_, "{} is {}, expected more than 0", name, real);
    return real;
  }
  bool boolean(std::string_view name) const {
    const Json* value = find(name);
    return value && value->as_bool(what(name));
  }
  std::string text(std::string_view name, std::string_view otherwise) const {
    const Json* value = find(name);
    return value ? value->as_string(what(name)) : std::string(otherwise);
  }
  std::string what(std::string_view name) const { return fmt::format("{}: {}", where_, name); }

 private:
  template <class T>
  T number(std::string_view name, std::optional<T> otherwise, T (Json::*read)(std::string_view) const) const {
    const Json* value = find(name);
    if (!value && !otherwise) fail<FileError>(where_, "has no '{}'", name);
    return value ? (value->*read)(what(name)) : *otherwise;
  }

  const Json& object_;
  std::string where_;
};

// transformers takes the family's default where they are left out, but as many as heads where they are null.
int64_t key_value_heads(const Json& root, const Reader& r, std::string_view where, const HfConfig& config) {
  constexpr std::string_view kName = "num_key_value_heads";
  const int64_t heads = config.num_attention_heads;
  const auto& family = row_of(config.family);
  const bool is_left_out = family.key_value_heads > 0 && !root.find(kName);
  const int64_t out = is_left_out ? family.key_value_heads : r.size(kName, heads);
  if (heads % out == 0) return out;
  if (is_left_out) {
    fail<FileError>(where,
                    "has no {}, for which transformers takes {} in {}, and num_attention_heads {} is not a "
                    "multiple of that: add it",
                    kName, out, family.model_type, heads);
  }
  fail<FileError>(where, "num_attention_heads {} is not a multiple of {} {}", heads, kName, out);
}

void refuse_partial_rotary(const Reader& r, std::string_view where) {
  if (const Json* factor = r.find("partial_rotary_factor"); factor && factor->as_number(where) != 1)
    fail<FileError>(where, "partial_rotary_factor is {}, expected 1", factor->as_number(where));
}

// Refuses what the model would compute but ours does not.
void refuse_unknown_mathematics(const Reader& r, std::string_view where) {
  if (std::string act = r.text("hidden_act", "silu"); act != "silu") {
    fail<FileError>(where, "hidden_act is '{}', expected 'silu': other activations are not supported", act);
  }
  if (r.boolean("attention_bias")) {
    fail<FileError>(where,
                    "attention_bias is true, which adds a bias to the output projection too: that is not "
                    "supported (biases on q, k and v alone are, as in model_type qwen2)");
  }
  if (r.boolean("mlp_bias"))
    fail<FileError>(where, "mlp_bias is true: biases in the feed-forward layers are not supported");
  if (r.boolean("use_sliding_window"))
    fail<FileError>(where, "use_sliding_window is true: sliding-window attention is not supported");
  if (const Json* types = r.find("layer_types")) {
    for (const Json& type : types->as_array(r.what("layer_types"))) {
      if (const std::string& name = type.as_string(r.what("layer_types")); name != "full_attention")
        fail<FileError>(
            where, "layer_types has '{}', expected 'full_attention': other layers are not supported", name);
    }
  }
  if (r.find("quantization_config")) {
    fail<FileError>(
        where, "it has a quantization_config: quantized weights are not supported; use the original model");
  }
  if (const Json* causal = r.find("is_causal"); causal && !causal->as_bool(r.what("is_causal")))
    fail<FileError>(where, "is_causal is false: attention to later tokens is not supported");
  refuse_partial_rotary(r, where);
}

struct Rope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;  // nothing where frequencies are not scaled
};

constexpr std::string_view kRopeMembers[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
constexpr std::string_view kMscales[] = {"mscale", "mscale_all_dim"};

// Absent for "default".
std::optional<RopeScaling::Type> rope_type(const Reader& rope, const std::string& name) {
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (const std::string other = rope.text("type", type); other != type)
    fail<FileError>(name, "rope_type is '{}' but type is '{}': remove one of them", type, other);
  if (type == "default") return std::nullopt;
  const auto known = std::ranges::find(kRopeTypes, type, &RopeTypeName::name);
  if (known == std::end(kRopeTypes)) {
    fail<FileError>(name, "rope type is '{}', expected default, {}: others are not supported", type,
                    listed(kRopeTypes, [](const RopeTypeName& one) { return one.name; }));
  }
  return known->type;
}

void refuse_other_members(const Json& object, const std::string& name,
                          std::optional<RopeScaling::Type> type) {
  const auto is_of = [](RopeScaling::Type of, const std::string& member) {
    return contains(rope_members(of), member) ||
           (of == RopeScaling::Type::yarn && contains(kMscales, member));
  };
  for (const auto& [member, value] : object.as_object(name)) {
    if (value.is_object())
      fail<FileError>(
          name, "{} is an object: separate RoPE settings for some of the layers are not supported", member);
    if (value.is_null() || contains(kRopeMembers, member) || (type && is_of(*type, member))) continue;
    if (std::ranges::any_of(kRopeTypes, [&](const auto& one) { return is_of(one.type, member); })) {
      fail<FileError>(name, "has '{}', which rope type '{}' does not use: correct rope_type, or remove it",
                      member, type ? name_of(*type) : "default");
    }
    fail<FileError>(name, "has '{}', which is not supported: remove it if the model was trained without it",
                    member);
  }
}

// Where it is not given, transformers takes it from both mscales, if both are there and not 0.
void read_attention_factor(const Reader& rope, RopeScaling& scaling) {
  if (rope.find("attention_factor")) {
    scaling.attention_factor = rope.positive("attention_factor");
    return;
  }
  double mscales[2];
  for (size_t i = 0; i < 2; ++i) {
    const Json* mscale = rope.find(kMscales[i]);
    if (!mscale || mscale->as_number(rope.what(kMscales[i])) == 0) return;
    mscales[i] = rope.positive(kMscales[i]);
  }
  scaling.mscale = mscales[0], scaling.mscale_all_dim = mscales[1];
}

// {rope_type | type, rope_theta, factor, ...}. `original`: where it has no original length.
Rope read_rope_object(const Json& object, const std::string& name, double original) {
  Reader rope(object, name);
  for (const char* member : {"rope_type", "rope_theta", "truncate"}) rope.refuse_null(member);
  const std::optional<RopeScaling::Type> type = rope_type(rope, name);
  refuse_other_members(object, name, type);
  refuse_partial_rotary(rope, name);
  Rope out;
  if (rope.find("rope_theta")) out.theta = rope.positive("rope_theta");
  if (!type) return out;
  RopeScaling& scaling = out.scaling.emplace();
  scaling.type = *type;
  scaling.factor = rope.positive("factor");
  if (*type != RopeScaling::Type::linear)
    scaling.original_max_position_embeddings = rope.positive(kOriginalLength, original);
  if (*type == RopeScaling::Type::llama3) {
    scaling.low_freq_factor = rope.positive("low_freq_factor");
    scaling.high_freq_factor = rope.positive("high_freq_factor");
  } else if (*type == RopeScaling::Type::yarn) {
    scaling.beta_fast = rope.positive("beta_fast", scaling.beta_fast);
    scaling.beta_slow = rope.positive("beta_slow", scaling.beta_slow);
    read_attention_factor(rope, scaling);
    scaling.truncate = !rope.find("truncate") || rope.boolean("truncate");
  }
  return out;
}

// The older form has rope_theta beside rope_scaling (an object or null), the newer one rope_parameters with
// both inside; transformers reads a rope_theta inside of either. A file with both forms has been edited by
// somebody; they must agree.
void read_rope(const Reader& r, std::string_view where, HfConfig& config) {
  std::optional<Rope> read;
  std::optional<double> theta;
  if (r.find("rope_theta")) theta = r.positive("rope_theta");
  const double original = r.positive(kOriginalLength, static_cast<double>(config.max_position_embeddings));
  for (const char* form : {"rope_scaling", "rope_parameters"}) {
    const Json* object = r.find(form);
    if (!object) continue;
    const Rope rope = read_rope_object(*object, r.what(form), original);
    if ((theta && rope.theta && theta != rope.theta) || (read && read->scaling != rope.scaling)) {
      fail<FileError>(where,
                      "{} contradicts rope_theta or rope_scaling: keep only those that the model was trained "
                      "with",
                      form);
    }
    if (rope.theta) theta = rope.theta;
    read = rope;
    // Beside the object it is read by some versions of transformers only, and there takes precedence.
    if (rope.scaling && rope.scaling->type != RopeScaling::Type::linear && r.find(kOriginalLength) &&
        original != rope.scaling->original_max_position_embeddings) {
      fail<FileError>(where, "has {} {}, but {} has {}: keep only the one that the model was trained with",
                      kOriginalLength, original, form, rope.scaling->original_max_position_embeddings);
    }
  }
  if (!theta) r.refuse_null("rope_theta");
  config.rope_theta = theta.value_or(config.rope_theta);
  if (!read || !read->scaling) return;
  config.rope_scaling = read->scaling;
  if (const std::string wrong = what_is_wrong(*config.rope_scaling, config.rope_theta); !wrong.empty())
    fail<FileError>(where, "{}", wrong);
}

}  // namespace

std::vector<int64_t> eos_token_ids(const Json& object, std::string_view where) {
  const Reader r(object, where);
  const Json* eos = r.find("eos_token_id");
  if (!eos) return {};
  const Json::Array list = eos->is_array() ? eos->as_array(where) : Json::Array{*eos};
  std::vector<int64_t> ids;
  for (const Json& id : list) ids.push_back(id.as_integer(r.what("eos_token_id")));
  return ids;
}

HfConfig parse_hf_config(std::string_view text, std::string_view where) {
  Json root = Json::parse(text, where);
  Reader r(root, where);
  std::string type = r.text("model_type", "");
  auto family = std::ranges::find(kHfFamilies, type, [](const auto& known) { return known.model_type; });
  if (family == std::end(kHfFamilies)) {
    fail<FileError>(where, "model_type is '{}', expected one of {}", type,
                    listed(kHfFamilies, [](const HfFamilyRow& known) { return known.model_type; }));
  }
  HfConfig config;
  config.family = family->family;
  for (const std::string_view name : kNeverNull) r.refuse_null(name);
  for (const auto& [of, name] : kNeverNullIn)
    if (of == config.family) r.refuse_null(name);
  refuse_unknown_mathematics(r, where);
  config.hidden_size = r.size("hidden_size");
  config.num_hidden_layers = r.size("num_hidden_layers");
  config.num_attention_heads = r.size("num_attention_heads");
  config.num_key_value_heads = key_value_heads(root, r, where, config);
  bool divides = config.hidden_size % config.num_attention_heads == 0;
  if (family->head_dim == 0 && !divides && !r.find("head_dim")) {
    fail<FileError>(where, "has no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                    config.hidden_size, config.num_attention_heads);
  }
  int64_t head_dim =
      family->head_dim > 0 ? family->head_dim : config.hidden_size / config.num_attention_heads;
  config.head_dim = r.size("head_dim", std::max<int64_t>(head_dim, 1));
  config.intermediate_size = r.size("intermediate_size");
  config.vocab_size = r.size("vocab_size");
  config.max_position_embeddings = r.size("max_position_embeddings", family->max_position_embeddings);
  config.rms_norm_eps = r.positive("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = r.boolean("tie_word_embeddings");
  const Json* window = root.find("sliding_window");
  if (config.family == HfFamily::mistral && !(window && window->is_null()))
    config.sliding_window = r.size("sliding_window", kMistralWindow);
  config.dtype = r.text("dtype", r.text("torch_dtype", "float32"));
  if (const Json* dropout = r.find("attention_dropout"))
    config.attention_dropout = dropout->as_number(r.what("attention_dropout"));
  read_rope(r, where, config);
  if (const Json* bos = r.find("bos_token_id")) config.bos_token_id = bos->as_integer(r.what("bos_token_id"));
  config.eos_token_ids = eos_token_ids(root, where);
  return config;
}

}  // namespace ottava
