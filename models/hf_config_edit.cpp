#include <string>
#include <type_traits>
#include <utility>

#include "core/contains.h"
#include "core/io/json.h"
#include "models/hf_family.h"
#include "models/rope_members.h"

// A config.json as it is written: anew, or from the one that a model was made from.
namespace ottava {
namespace {

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

constexpr std::string_view kRopeForms[] = {"rope_parameters", "rope_scaling"};

Json scaling_json(const std::optional<RopeScaling>& scaling) {
  if (!scaling) return {};
  Json json;
  json.set("rope_type", name_of(scaling->type)).set("factor", scaling->factor);
  if (scaling->type == RopeScaling::Type::llama3) {
    json.set("low_freq_factor", scaling->low_freq_factor).set("high_freq_factor", scaling->high_freq_factor);
  }
  if (scaling->type != RopeScaling::Type::linear)
    json.set(kOriginalLength, static_cast<int64_t>(scaling->original_max_position_embeddings));
  if (scaling->type == RopeScaling::Type::yarn) {
    json.set("beta_fast", scaling->beta_fast).set("beta_slow", scaling->beta_slow);
    if (scaling->attention_factor) json.set("attention_factor", *scaling->attention_factor);
    if (scaling->mscale > 0)
      json.set("mscale", scaling->mscale).set("mscale_all_dim", scaling->mscale_all_dim);
    if (!scaling->truncate) json.set("truncate", false);
  }
  return json;
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

// Whether a scaling's original length stands elsewhere than in its object: it is max_position_embeddings if
// it is left out, and would change with that.
bool lacks_original(const Json& root, const std::optional<RopeScaling>& scaling) {
  if (!scaling || scaling->type == RopeScaling::Type::linear) return false;
  return std::ranges::none_of(kRopeForms, [&](std::string_view form) {
    const Json* object = root.find(form);
    const Json* original = object ? object->find(kOriginalLength) : nullptr;
    return original && !original->is_null();
  });
}

void edit_rope(const Json& root, const HfConfig& was, const HfConfig& now, Editor& edit) {
  const bool completes = lacks_original(root, now.rope_scaling),
             would_move = completes && was.max_position_embeddings != now.max_position_embeddings;
  if (was.rope_theta == now.rope_theta && was.rope_scaling == now.rope_scaling && !would_move) return;
  edit.erase(kOriginalLength);  // it stands in the object too
  // Where rope_theta is inside of one of these, it stays there.
  for (const std::string_view form : kRopeForms) {
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
  if (was.rope_scaling != now.rope_scaling || completes) {
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

Json window_json(const HfConfig& c) { return c.sliding_window ? Json(*c.sliding_window) : Json(); }

Json bos_json(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(); }

}  // namespace

HfConfigEdit edit_hf_config(std::string_view source, std::string_view where, const HfConfig& now) {
  const Json root = Json::parse(source, where);
  const HfConfig was = parse_hf_config(source, where);
  Editor edit(root.as_object(where));
  if (was.family != now.family) {
    const auto& family = row_of(now.family);
    edit.put("model_type", std::string(family.model_type), row_of(was.family).model_type, family.model_type);
    edit.set("architectures", Json(Json::Array{std::string(family.architecture)}));
    // LlamaConfig and MistralConfig would take 1 and 2 for what a file of Qwen leaves out.
    for (const std::string_view name : {"bos_token_id", "eos_token_id"})
      if (!root.find(name)) edit.set(name, Json());
    // It means something to Mistral, even where it is left out.
    edit.erase("sliding_window");
    if (now.family == HfFamily::mistral) edit.set("sliding_window", window_json(now));
    // A null that was taken for left out, and that the new family does not take for it.
    for (const auto& [of, name] : kNeverNullIn)
      if (const Json* value = root.find(name); of == now.family && value && value->is_null())
        edit.erase(name);
  } else if (was.sliding_window != now.sliding_window) {
    edit.put("sliding_window", window_json(now), window_json(was).dump(), window_json(now).dump());
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
  auto family = [](const HfConfig& c) {
    const bool is_as_llama = c.family == HfFamily::mistral;
    return std::string(row_of(is_as_llama ? HfFamily::llama : c.family).model_type);
  };
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
  root.set("attention_bias", false).set("attention_dropout", c.attention_dropout);
  if (c.family == HfFamily::llama) root.set("mlp_bias", false);
  if (c.family == HfFamily::mistral) root.set("sliding_window", window_json(c));
  root.set("tie_word_embeddings", c.tie_word_embeddings);
  root.set("bos_token_id", bos_json(c.bos_token_id)).set("eos_token_id", eos_json(c.eos_token_ids));
  root.set("torch_dtype", c.dtype).set("use_cache", true);
  return root.dump(2) + "\n";
}

}  // namespace ottava
