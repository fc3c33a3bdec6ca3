#include "models/hf_config.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/contains.h"
#include "core/error.h"
#include "core/io/json.h"

namespace ottava {
namespace {

constexpr struct {
  HfFamily family;
  std::string_view model_type, architecture;
  // Defaults. Key/value heads 0: as many as heads; head_dim 0: hidden_size / heads.
  int64_t key_value_heads, head_dim, max_position_embeddings;
  std::optional<int64_t> bos_token_id = {}, eos_token_id = {};
} kFamilies[] = {{HfFamily::llama, "llama", "LlamaForCausalLM", 0, 0, 2048, 1, 2},
                 {HfFamily::qwen2, "qwen2", "Qwen2ForCausalLM", 32, 0, 32768},
                 {HfFamily::qwen3, "qwen3", "Qwen3ForCausalLM", 32, 128, 32768}};

/// What transformers 5 refuses, or fails with, where it is null instead of left out.
constexpr std::string_view kNeverNull[] = {"max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
                                           "hidden_act"};
constexpr std::pair<HfFamily, std::string_view> kNeverNullIn[] = {
    {HfFamily::llama, "attention_bias"}, {HfFamily::llama, "mlp_bias"},
    {HfFamily::qwen2, "head_dim"},       {HfFamily::qwen2, "use_sliding_window"},
    {HfFamily::qwen3, "head_dim"},       {HfFamily::qwen3, "use_sliding_window"},
    {HfFamily::qwen3, "attention_bias"}};

/// Numbers with the same name here and in a config.json, in its order.
constexpr std::pair<std::string_view, int64_t HfConfig::*> kSizes[] = {
    {"hidden_size", &HfConfig::hidden_size},
    {"num_hidden_layers", &HfConfig::num_hidden_layers},
    {"num_attention_heads", &HfConfig::num_attention_heads},
    {"num_key_value_heads", &HfConfig::num_key_value_heads},
    {"head_dim", &HfConfig::head_dim},
    {"intermediate_size", &HfConfig::intermediate_size},
    {"vocab_size", &HfConfig::vocab_size},
    {"max_position_embeddings", &HfConfig::max_position_embeddings}};

/// What a config.json may leave out; it is then taken from the family or from other sizes.
constexpr std::string_view kDerivedSizes[] = {"num_key_value_heads", "head_dim", "max_position_embeddings"};

const auto& row_of(HfFamily family) { return kFamilies[static_cast<size_t>(family)]; }

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
  bool flag(std::string_view name) const {
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
  if (r.flag("attention_bias")) {
    fail<FileError>(where,
                    "attention_bias is true, which adds a bias to the output projection too: that is not "
                    "supported (biases on q, k and v alone are, as in model_type qwen2)");
  }
  if (r.flag("mlp_bias"))
    fail<FileError>(where, "mlp_bias is true: biases in the feed-forward layers are not supported");
  if (r.flag("use_sliding_window"))
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

constexpr std::string_view kOriginal = "original_max_position_embeddings";
constexpr std::string_view kRopeMembers[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
constexpr std::string_view kScalingMembers[] = {"factor", "low_freq_factor", "high_freq_factor", kOriginal};

// {rope_type | type, rope_theta, factor, ...}
Rope read_rope_object(const Json& object, const std::string& name) {
  Reader rope(object, name);
  for (const char* member : {"rope_type", "rope_theta"}) rope.refuse_null(member);
  std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (std::string other = rope.text("type", type); other != type)
    fail<FileError>(name, "rope_type is '{}' but type is '{}': remove one of them", type, other);
  for (const auto& [member, value] : object.as_object(name)) {
    if (value.is_object())
      fail<FileError>(
          name, "{} is an object: separate RoPE settings for some of the layers are not supported", member);
  }
  if (type != "default" && type != "llama3") {
    fail<FileError>(name, "rope type is '{}', expected 'default' or 'llama3': others are not supported",
                    type);
  }
  for (const auto& [member, value] : object.as_object(name)) {
    if (value.is_null() || contains(kRopeMembers, member)) continue;
    if (!contains(kScalingMembers, member)) {
      fail<FileError>(name, "has '{}', which is not supported: remove it if the model was trained without it",
                      member);
    }
    if (type == "default") {
      fail<FileError>(
          name, "has '{}', but rope type 'default' does not scale: set rope_type to 'llama3', or remove it",
          member);
    }
  }
  refuse_partial_rotary(rope, name);
  Rope out;
  if (rope.find("rope_theta")) out.theta = rope.positive("rope_theta");
  if (type == "default") return out;
  out.scaling = {.factor = rope.positive("factor"),
                 .low_freq_factor = rope.positive("low_freq_factor"),
                 .high_freq_factor = rope.positive("high_freq_factor"),
                 .original_max_position_embeddings = rope.positive(kOriginal)};
  if (out.scaling->high_freq_factor <= out.scaling->low_freq_factor) {
    fail<FileError>(name, "high_freq_factor is {}, expected more than low_freq_factor {}",
                    out.scaling->high_freq_factor, out.scaling->low_freq_factor);
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
  for (const char* form : {"rope_scaling", "rope_parameters"}) {
    const Json* object = r.find(form);
    if (!object) continue;
    const Rope rope = read_rope_object(*object, r.what(form));
    if ((theta && rope.theta && theta != rope.theta) || (read && read->scaling != rope.scaling)) {
      fail<FileError>(where,
                      "{} contradicts rope_theta or rope_scaling: keep only those that the model was trained "
                      "with",
                      form);
    }
    if (rope.theta) theta = rope.theta;
    read = rope;
    // Beside the object it is read by some versions of transformers only, and there takes precedence.
    if (rope.scaling && r.find(kOriginal) &&
        r.positive(kOriginal) != rope.scaling->original_max_position_embeddings) {
      fail<FileError>(where, "has {} {}, but {} has {}: keep only the one that the model was trained with",
                      kOriginal, r.positive(kOriginal), form, rope.scaling->original_max_position_embeddings);
    }
  }
  if (!theta) r.refuse_null("rope_theta");
  config.rope_theta = theta.value_or(config.rope_theta);
  if (read) config.rope_scaling = read->scaling;
}

Json scaling_json(const std::optional<RopeScaling>& scaling) {
  if (!scaling) return {};
  return Json()
      .set("rope_type", "llama3")
      .set("factor", scaling->factor)
      .set("low_freq_factor", scaling->low_freq_factor)
      .set("high_freq_factor", scaling->high_freq_factor)
      .set("original_max_position_embeddings",
           static_cast<int64_t>(scaling->original_max_position_embeddings));
}

// transformers writes 9.999999747378752e-06 where 1e-05 was meant.
bool same_epsilon(double a, double b) { return static_cast<float>(a) == static_cast<float>(b); }

class Editor {
 public:
  explicit Editor(const Json::Object& members) : members_(members) {}

  template <class T>
  void replace(std::string_view name, const T& was, const T& now) {
    if (was == now) return;
    if constexpr (std::is_same_v<T, std::string>) {
      put(name, now, was, now);
    } else {
      put(name, Json(now), Json(was).dump(), Json(now).dump());
    }
  }
  void put(std::string_view name, Json value, std::string_view was, std::string_view now) {
    changes_.push_back(fmt::format("{} {} -> {}", name, was, now));
    set(name, std::move(value));
  }
  void set(std::string_view name, Json value) {
    for (auto& [member, old] : members_) {
      if (member != name) continue;
      old = std::move(value);
      return;
    }
    members_.emplace_back(name, std::move(value));
  }
  void erase(std::string_view name) {
    std::erase_if(members_, [&](const auto& member) { return member.first == name; });
  }
  HfConfigEdit finish() { return {Json(std::move(members_)).dump(2) + "\n", std::move(changes_)}; }

 private:
  Json::Object members_;
  std::vector<std::string> changes_;
};

void edit_rope(const Json& root, const HfConfig& was, const HfConfig& now, Editor& edit) {
  if (was.rope_theta == now.rope_theta && was.rope_scaling == now.rope_scaling) return;
  edit.erase(kOriginal);  // it stands in the object too
  // Where rope_theta is inside of one of these, it stays there.
  for (const std::string_view form : {"rope_parameters", "rope_scaling"}) {
    const Json* object = root.find(form);
    if (!object || object->is_null() || (form == "rope_scaling" && !object->find("rope_theta"))) continue;
    Json json = now.rope_scaling ? scaling_json(now.rope_scaling) : Json().set("rope_type", "default");
    json.set("rope_theta", now.rope_theta);
    edit.put(form, json, object->dump(), json.dump());
    for (const std::string_view other : {"rope_theta", "rope_scaling"})
      if (other != form) edit.erase(other);
    return;
  }
  edit.replace("rope_theta", was.rope_theta, now.rope_theta);
  if (was.rope_scaling != now.rope_scaling) {
    const Json json = scaling_json(now.rope_scaling);
    edit.put("rope_scaling", json, scaling_json(was.rope_scaling).dump(), json.dump());
  }
}

Json eos_json(const std::vector<int64_t>& ids) {
  if (ids.size() == 1) return ids[0];
  Json list;
  for (int64_t id : ids) list.push(id);
  return list;
}

Json bos_json(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(); }

// Null: there is none; left out: the family's.
std::optional<int64_t> bos_token_id(const Json& root, const Reader& r, HfFamily family) {
  constexpr std::string_view kName = "bos_token_id";
  if (!root.find(kName)) return row_of(family).bos_token_id;
  const Json* bos = r.find(kName);
  return bos ? std::optional(bos->as_integer(r.what(kName))) : std::nullopt;
}

}  // namespace

std::vector<int64_t> eos_token_ids(const Json& object, std::string_view where) {
  const Reader r(object, where);
  const Json* eos = r.find("eos_token_id");
  if (!eos && !object.find("eos_token_id")) {
    const std::string type = r.text("model_type", "");
    for (const auto& family : kFamilies)
      if (family.model_type == type && family.eos_token_id) return {*family.eos_token_id};
  }
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
  auto family = std::ranges::find(kFamilies, type, [](const auto& known) { return known.model_type; });
  if (family == std::end(kFamilies)) {
    fail<FileError>(where, "model_type is '{}', expected llama, qwen2 or qwen3", type);
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
  config.tie_word_embeddings = r.flag("tie_word_embeddings");
  config.dtype = r.text("dtype", r.text("torch_dtype", "float32"));
  read_rope(r, where, config);
  config.bos_token_id = bos_token_id(root, r, config.family);
  config.eos_token_ids = eos_token_ids(root, where);
  return config;
}

HfConfigEdit edit_hf_config(std::string_view source, std::string_view where, const HfConfig& now) {
  const Json root = Json::parse(source, where);
  const HfConfig was = parse_hf_config(source, where);
  Editor edit(root.as_object(where));
  if (was.family != now.family) {
    const auto& family = row_of(now.family);
    edit.put("model_type", std::string(family.model_type), row_of(was.family).model_type, family.model_type);
    edit.set("architectures", Json(Json::Array{std::string(family.architecture)}));
  }
  if (was.family != now.family) {  // whose default may be another
    if (!root.find("bos_token_id")) edit.set("bos_token_id", bos_json(was.bos_token_id));
    if (!root.find("eos_token_id")) edit.set("eos_token_id", eos_json(was.eos_token_ids));
  }
  bool derives_anew = was.family != now.family;
  for (const auto& [name, size] : kSizes) {
    derives_anew |= was.*size != now.*size;
    edit.replace(name, was.*size, now.*size);
  }
  // A value that did not change and was left out would now be read as another.
  for (const auto& [name, size] : kSizes)
    if (derives_anew && contains(kDerivedSizes, name)) edit.set(name, now.*size);
  if (was.num_hidden_layers != now.num_hidden_layers) edit.erase("layer_types");  // one for each layer
  if (!same_epsilon(was.rms_norm_eps, now.rms_norm_eps))
    edit.replace("rms_norm_eps", was.rms_norm_eps, now.rms_norm_eps);
  edit.replace("tie_word_embeddings", was.tie_word_embeddings, now.tie_word_embeddings);
  edit_rope(root, was, now, edit);
  edit.replace(root.find("dtype") ? "dtype" : "torch_dtype", was.dtype, now.dtype);
  return edit.finish();
}

std::vector<std::string> differences(const HfConfig& a, const HfConfig& b) {
  std::vector<std::string> out;
  auto compare = [&](std::string_view name, const Json& x, const Json& y) {
    if (x.dump() != y.dump()) out.push_back(fmt::format("{} {} and {}", name, x.dump(), y.dump()));
  };
  auto family = [](const HfConfig& c) { return std::string(row_of(c.family).model_type); };
  compare("model_type", family(a), family(b));
  for (const auto& [name, size] : kSizes)
    if (name != "max_position_embeddings") compare(name, a.*size, b.*size);
  if (!same_epsilon(a.rms_norm_eps, b.rms_norm_eps)) compare("rms_norm_eps", a.rms_norm_eps, b.rms_norm_eps);
  compare("rope_theta", a.rope_theta, b.rope_theta);
  compare("rope_scaling", scaling_json(a.rope_scaling), scaling_json(b.rope_scaling));
  compare("tie_word_embeddings", a.tie_word_embeddings, b.tie_word_embeddings);
  return out;
}

std::string to_json(const HfConfig& c) {
  const auto& family = row_of(c.family);
  Json root;
  root.set("architectures", Json(Json::Array{std::string(family.architecture)}));
  root.set("model_type", family.model_type);
  for (const auto& [name, size] : kSizes) root.set(std::string(name), c.*size);
  root.set("hidden_act", "silu").set("rms_norm_eps", c.rms_norm_eps).set("rope_theta", c.rope_theta);
  root.set("rope_scaling", scaling_json(c.rope_scaling));
  root.set("attention_bias", false).set("attention_dropout", 0.0);
  if (c.family == HfFamily::llama) root.set("mlp_bias", false);
  root.set("tie_word_embeddings", c.tie_word_embeddings);
  root.set("bos_token_id", bos_json(c.bos_token_id)).set("eos_token_id", eos_json(c.eos_token_ids));
  root.set("torch_dtype", c.dtype).set("use_cache", true);
  return root.dump(2) + "\n";
}

}  // namespace ottava
