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

Json post_processor(const TokenizerDefinition& d) {
  if (!d.adds_bos) return byte_level();
  const std::string& bos = d.tokens[d.bos_id];
  auto special = [&] {
    return Json(Json::Object{{"SpecialToken", Json::Object{{"id", bos}, {"type_id", 0}}}});
  };
  auto text = [](const char* id, int type) {
    return Json(Json::Object{{"Sequence", Json::Object{{"id", id}, {"type_id", type}}}});
  };
  Json::Object specials{
      {bos, Json::Object{{"id", bos}, {"ids", Json::Array{d.bos_id}}, {"tokens", Json::Array{bos}}}}};
  Json of_template = Json::Object{{"type", "TemplateProcessing"},
                                  {"single", Json::Array{special(), text("A", 0)}},
                                  {"pair", Json::Array{special(), text("A", 0), special(), text("B", 1)}},
                                  {"special_tokens", specials}};
  return Json::Object{{"type", "Sequence"}, {"processors", Json::Array{byte_level(), of_template}}};
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

Json added_token(const AddedToken& token) {
  return Json::Object{
      {"id", token.id},          {"content", token.content}, {"single_word", token.single_word},
      {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
      {"special", token.special}};
}

}  // namespace

TokenizerTexts write_definition(const TokenizerDefinition& d) {
  Json::Array added;
  for (const AddedToken& token : d.added) added.push_back(added_token(token));
  // HF's reader relies on this order of sections.
  Json file = Json::Object{{"version", "1.0"},
                           {"truncation", Json()},
                           {"padding", Json()},
                           {"added_tokens", added},
                           {"normalizer", d.nfc ? Json(Json::Object{{"type", "NFC"}}) : Json()},
                           {"pre_tokenizer", pre_tokenizer(d)},
                           {"post_processor", post_processor(d)},
                           {"decoder", byte_level()},
                           {"model", model(d)}};
  Json config = Json::Object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                             {"clean_up_tokenization_spaces", false},
                             {"model_input_names", Json::Array{"input_ids", "attention_mask"}}};
  if (d.bos_id >= 0) config.set("bos_token", d.tokens[d.bos_id]);
  if (d.eos_id >= 0) config.set("eos_token", d.tokens[d.eos_id]);
  return {file.dump() + "\n", config.dump(2) + "\n"};
}

}  // namespace ottava::tokenizer
