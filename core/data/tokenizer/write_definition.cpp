#include <algorithm>
#include <iterator>
#include <utility>

#include "core/data/tokenizer/byte_level.h"
#include "core/data/tokenizer/definition.h"
#include "core/io/json.h"

namespace ottava::tokenizer {
namespace {

// Text is split by the steps before it, so it has no pattern of its own.
Json byte_level() {
  return Json::Object{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

Json pre_tokenizer(const TokenizerDefinition& d) {
  Json::Array steps;
  for (const SplitStep& step : d.steps) {
    Json pattern = Json::Object{{step.literal ? "String" : "Regex", step.regex}};
    steps.push_back(
        Json::Object{{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(byte_level());
  return Json::Object{{"type", "Sequence"}, {"pretokenizers", steps}};
}

/// Which of the two a template has.
struct Around {
  bool bos, eos;
};

std::string content_of(const TokenizerDefinition& d, int32_t id) {
  const auto added = std::ranges::find(d.added, id, &AddedToken::id);
  return added == d.added.end() ? d.tokens[id] : added->content;
}

/// One text, or two, each with BOS before and EOS after it as `around` says; `bytes` are processors
/// that change no ids.
Json post_processor(Json::Array bytes, const TokenizerDefinition& d, Around around) {
  Json::Array single, pair;
  Json::Object specials;
  const auto add_special = [&](bool wanted, int32_t id, Json::Array& to) {
    if (!wanted) return;
    const std::string token = content_of(d, id);
    to.push_back(Json::Object{{"SpecialToken", Json::Object{{"id", token}, {"type_id", 0}}}});
    if (std::ranges::find(specials, token, &Json::Object::value_type::first) != specials.end()) return;
    specials.emplace_back(
        token, Json::Object{{"id", token}, {"ids", Json::Array{id}}, {"tokens", Json::Array{token}}});
  };
  const auto add_text = [&](const char* name, int type, Json::Array& to) {
    add_special(around.bos, d.bos_id, to);
    to.push_back(Json::Object{{"Sequence", Json::Object{{"id", name}, {"type_id", type}}}});
    add_special(around.eos, d.eos_id, to);
  };
  add_text("A", 0, single);
  add_text("A", 0, pair);
  add_text("B", 1, pair);
  if (around.bos || around.eos) {
    bytes.push_back(Json::Object{
        {"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}});
  }
  if (bytes.size() > 1) return Json::Object{{"type", "Sequence"}, {"processors", bytes}};
  return bytes.empty() ? Json() : bytes.front();
}

/// The processors of a file without its templates.
Json::Array without_templates(const Json* section) {
  const Json* type = section ? section->find("type") : nullptr;
  if (!type) return {};
  const std::string& name = type->as_string("type");
  if (name == "ByteLevel") return {*section};
  Json::Array out;
  if (name == "Sequence") {
    for (const Json& one : section->at("processors", "post_processor").as_array("processors"))
      std::ranges::copy(without_templates(&one), std::back_inserter(out));
  }
  return out;
}

Json model(const TokenizerDefinition& d) {
  Json::Object vocab;
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    if (d.reachable[id]) vocab.push_back({to_byte_level(d.tokens[id]), static_cast<int64_t>(id)});
  }
  Json::Array merges;
  for (const Merge& m : d.merges) {
    merges.push_back(to_byte_level(d.tokens[m.left]) + " " + to_byte_level(d.tokens[m.right]));
  }
  return Json::Object{{"type", "BPE"},
                      {"dropout", Json()},
                      {"unk_token", Json()},
                      {"continuing_subword_prefix", Json()},
                      {"end_of_word_suffix", Json()},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", d.ignore_merges},
                      {"vocab", vocab},
                      {"merges", merges}};
}

Json::Object added_token(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.content}, {"single_word", token.single_word},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
          {"special", token.special}};
}

Json added_tokens(const TokenizerDefinition& d) {
  Json::Array out;
  for (const AddedToken& token : d.added) out.push_back(added_token(token));
  return out;
}

/// Whether an entry of a file's added_tokens says the same; what it leaves out does not count.
bool says(const Json& entry, const AddedToken& token) {
  return std::ranges::all_of(added_token(token), [&](const auto& member) {
    const Json* value = entry.find(member.first);
    return !value || value->dump() == member.second.dump();
  });
}

void set_section(Json::Object& file, std::string_view name, Json section) {
  auto at = std::ranges::find(file, name, &Json::Object::value_type::first);
  if (at != file.end()) {
    at->second = std::move(section);
  } else {
    at = std::ranges::find(file, "model", &Json::Object::value_type::first);
    file.emplace(at, name, std::move(section));
  }
}

}  // namespace

TokenizerTexts write_definition(const TokenizerDefinition& d) {
  // HF's reader relies on this order of sections.
  Json file = Json::Object{{"version", "1.0"},
                           {"truncation", Json()},
                           {"padding", Json()},
                           {"added_tokens", added_tokens(d)},
                           {"normalizer", d.nfc ? Json(Json::Object{{"type", "NFC"}}) : Json()},
                           {"pre_tokenizer", pre_tokenizer(d)},
                           {"post_processor", post_processor({byte_level()}, d, {d.adds_bos, d.adds_eos})},
                           {"decoder", byte_level()},
                           {"model", model(d)}};
  Json config = Json::Object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                             {"clean_up_tokenization_spaces", false},
                             {"model_input_names", Json::Array{"input_ids", "attention_mask"}}};
  if (d.bos_id >= 0) config.set("bos_token", d.tokens[d.bos_id]);
  if (d.eos_id >= 0) config.set("eos_token", d.tokens[d.eos_id]);
  return {file.dump() + "\n", config.dump(2) + "\n"};
}

std::string edit_definition(std::string_view tokenizer_json, const TokenizerDefinition& d, TextStart start) {
  const Json before = Json::parse(tokenizer_json, "tokenizer.json");
  const Around around{.bos = start == TextStart::bos, .eos = d.adds_eos};
  const auto is_listed = [&](const AddedToken& token) {
    const Json* list = before.find("added_tokens");
    return list && list->is_array() &&
           std::ranges::any_of(list->as_array("added_tokens"), [&](const Json& entry) {
             return entry.at("id", "added_tokens").as_integer("id") == token.id && says(entry, token);
           });
  };
  const bool lists_all = std::ranges::all_of(d.added, is_listed);
  if (lists_all && around.bos == d.adds_bos) return std::string(tokenizer_json);
  Json::Object file = before.as_object("tokenizer.json");
  if (!lists_all) set_section(file, "added_tokens", added_tokens(d));
  if (around.bos != d.adds_bos) {
    set_section(file, "post_processor",
                post_processor(without_templates(before.find("post_processor")), d, around));
  }
  return Json(std::move(file)).dump() + "\n";
}

}  // namespace ottava::tokenizer
