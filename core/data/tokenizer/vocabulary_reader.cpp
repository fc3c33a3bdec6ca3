#include "core/data/tokenizer/vocabulary_reader.h"

#include <algorithm>
#include <cctype>

#include "core/data/tokenizer/byte_level.h"

namespace ottava::tokenizer {

void VocabularyReader::read_model(const Json& model) {
  if (!model.is_object()) refuse("\"model\" must be an object, got {}", quoted(model));
  // GPT-2's own file is older than the field.
  std::string type = get(model, "type").is_null() ? "BPE" : type_of(model, "the model");
  if (type != "BPE") refuse("model type '{}' is not supported; expected BPE", type);
  if (boolean(model, "byte_fallback", false)) {
    refuse(
        "byte_fallback belongs to SentencePiece vocabularies, which are not supported; expected byte-level "
        "BPE");
  }
  const Json& dropout = get(model, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.as_number("dropout") == 0)) {
    refuse("dropout {} would make ids random; expected null", quoted(dropout));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& affix = get(model, key);
    if (!affix.is_null() && !(affix.is_string() && affix.as_string(key).empty()))
      refuse("{} {} is not supported; expected none", key, quoted(affix));
  }
  d_.ignore_merges = boolean(model, "ignore_merges", false);
  const Json& vocab = member(model, "vocab");
  if (!vocab.is_object()) refuse("\"vocab\" must be an object of token: id, got {}", quoted(vocab));
  for (const auto& [key, value] : vocab.as_object("vocab")) place(key, id(value, key));
  decode_keys();
  read_merges(member(model, "merges"));
}

/// Takes an id for a key. Ids beyond the number of tokens are kept for check_ids to report.
void VocabularyReader::place(const std::string& key, int32_t at) {
  auto [other, is_new] = keys_.try_emplace(at, key);
  if (!is_new) refuse("id {} is given twice: to '{}' and to '{}'", at, other->second, key);
  ids_.emplace(key, at);
}

void VocabularyReader::decode_keys() {
  auto missing_byte = [&](auto key_of) {
    for (int b = 0; b < 256; ++b) {
      if (!ids_.count(key_of(b))) return b;
    }
    return -1;
  };
  const int missing =
      missing_byte([&](int b) { return to_byte_level(std::string(1, static_cast<char>(b))); });
  if (missing >= 0) {
    // Keys that are the text itself, written by hand or from another format.
    d_.key_style = KeyStyle::raw;
    const int raw_missing = missing_byte(
        [&](int b) { return b < 128 ? std::string(1, static_cast<char>(b)) : fmt::format("\\x{:02x}", b); });
    if (raw_missing >= 0) {
      refuse(
          "the vocabulary has no token for byte 0x{:02x} (key U+{:04X}), so some text could not be encoded; "
          "expected a byte-level vocabulary with all 256",
          missing, static_cast<uint32_t>(byte_level_alphabet()[missing]));
    }
  }
  for (const auto& [key, at] : ids_) model_bytes_.emplace(at, bytes_of(key));
}

/// The bytes of a key, and whether BPE can produce them.
std::pair<std::string, bool> VocabularyReader::bytes_of(const std::string& key) const {
  if (d_.key_style == KeyStyle::byte_level) {
    auto bytes = from_byte_level(key);
    return bytes ? std::pair{*bytes, true} : std::pair{key, false};
  }
  std::string bytes;
  for (size_t i = 0; i < key.size(); ++i) {
    size_t used = 0;
    int value = 0;
    if (key.compare(i, 2, "\\x") == 0 && key.size() - i >= 4 &&
        isxdigit(static_cast<unsigned char>(key[i + 2])) &&
        isxdigit(static_cast<unsigned char>(key[i + 3]))) {
      value = std::stoi(key.substr(i + 2, 2), &used, 16);
    }
    bytes.push_back(value >= 128 ? static_cast<char>(value) : key[i]);
    if (value >= 128) i += 3;
  }
  return {bytes, true};
}

void VocabularyReader::read_merges(const Json& merges) {
  if (!merges.is_array()) refuse("\"merges\" must be an array, got {}", quoted(merges));
  const auto& all = merges.as_array("merges");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Json& merge = all[rank];
    std::string left, right;
    const Json::Array none, &pair = merge.is_array() ? merge.as_array("merge") : none;
    if (pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
      left = pair[0].as_string("merge");
      right = pair[1].as_string("merge");
    } else if (merge.is_string()) {
      const std::string& both = merge.as_string("merge");
      if (rank == 0 && both.starts_with("#version")) continue;
      size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
        refuse("merge {} is {}; expected two tokens and one space between them", rank, quoted(merge));
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      refuse("merge {} is {}; expected \"a b\" or [\"a\", \"b\"]", rank, quoted(merge));
    }
    auto id_of = [&](const std::string& key) {
      auto it = ids_.find(key);
      if (it == ids_.end()) {
        refuse("merge {} ('{}' + '{}') needs token '{}', which the vocabulary does not have", rank, left,
               right, key);
      }
      return it->second;
    };
    int32_t left_id = id_of(left), right_id = id_of(right);
    d_.merges.push_back({left_id, right_id, id_of(left + right)});
  }
}

void VocabularyReader::add(const Json& entry, const Json& at) {
  AddedToken token;
  token.content = text(get(entry, "content"), "the content of an added token");
  if (token.content.empty()) refuse("an added token has no content");
  token.id = id(at, token.content);
  token.special = boolean(entry, "special", false);
  token.normalized = boolean(entry, "normalized", !token.special);
  token.lstrip = boolean(entry, "lstrip", false);
  token.rstrip = boolean(entry, "rstrip", false);
  token.single_word = boolean(entry, "single_word", false);
  auto known = ids_.find(token.content);
  if (known == ids_.end()) {
    place(token.content, token.id);
  } else if (known->second != token.id) {
    refuse("added token '{}' has id {}, but the vocabulary gives it {}", token.content, token.id,
           known->second);
  }
  // tokenizer_config.json mostly repeats tokenizer.json. Where it does not, transformers goes by it, but what
  // is special anywhere stays so.
  const auto [at_id, is_new] = added_at_.try_emplace(token.id, d_.added.size());
  if (is_new) d_.added.emplace_back();
  AddedToken& listed = d_.added[at_id->second];
  token.special |= listed.special;
  listed = std::move(token);
}

void VocabularyReader::read_added(const Json& file, const Json& config) {
  const Json& list = get(file, "added_tokens");
  if (!list.is_null() && !list.is_array()) refuse("\"added_tokens\" must be an array, got {}", quoted(list));
  if (list.is_array()) {
    for (const Json& entry : list.as_array("added_tokens")) add(entry, get(entry, "id"));
  }
  const Json& more = get(config, "added_tokens_decoder");
  if (!more.is_null() && !more.is_object()) {
    refuse("tokenizer_config.json: \"added_tokens_decoder\" must be an object, got {}", quoted(more));
  }
  if (more.is_null()) return;
  for (const auto& [key, entry] : more.as_object("added_tokens_decoder")) {
    bool digits = !key.empty() && key.size() <= 10 &&
                  std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) refuse("tokenizer_config.json: added_tokens_decoder has key '{}'; expected an id", key);
    add(entry, Json(static_cast<int64_t>(std::stoll(key))));
  }
}

void VocabularyReader::read_named(const Json& config, const Json& map) {
  read_names(config, "tokenizer_config.json");
  // transformers reads the older file only where the newer one does not list tokens.
  if (get(config, "added_tokens_decoder").is_null()) read_names(map, "special_tokens_map.json");
}

void VocabularyReader::read_names(const Json& object, const std::string& file) {
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    name_token(name, get(object, name), file);
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json& more = get(object, name);
    if (more.is_object()) {
      for (const auto& [own_name, token] : more.as_object(name)) name_token(own_name, token, file);
    } else if (!more.is_null()) {
      if (!more.is_array()) refuse("{}: {} must be an array, got {}", file, name, quoted(more));
      for (const Json& token : more.as_array(name)) name_token(name, token, file);
    }
  }
}

void VocabularyReader::name_token(const std::string& name, const Json& token, const std::string& file) {
  if (token.is_null()) return;
  const std::string content =
      text(token.is_object() ? get(token, "content") : token, fmt::format("{}: {}", file, name));
  if (content.empty()) return;
  if (const auto before = named_.find(name); name.ends_with("_token") && before != named_.end()) {
    if (before->second != content) {
      refuse("{} is '{}' in tokenizer_config.json, but '{}' in {}: remove the wrong one", name,
             before->second, content, file);
    }
    return;
  }
  const auto known = ids_.find(content);
  if (known == ids_.end()) {
    // Some files name a padding token that was never added; no text is padded here.
    if (name == "pad_token") return;
    refuse(
        "{}: {} is '{}', which is not in the vocabulary: give it an id in added_tokens of tokenizer.json, or "
        "remove the name",
        file, name, content);
  }
  named_.emplace(name, content);
  if (const auto listed = added_at_.find(known->second); listed != added_at_.end()) {
    // Only transformers 5 reads a list of this name; in it, an ordinary added token stays ordinary. In the
    // list additional_special_tokens it does so for 5, but not for 4, of whose time that name is.
    if (name != "extra_special_tokens") d_.added[listed->second].special = true;
    return;
  }
  Json::Object entry{{"content", content}, {"special", true}};
  for (const char* flag : {"normalized", "lstrip", "rstrip", "single_word"})
    if (token.find(flag)) entry.emplace_back(flag, *token.find(flag));
  add(Json(std::move(entry)), Json(int64_t{known->second}));
}

std::string VocabularyReader::named(const std::string& name) const {
  const auto it = named_.find(name);
  return it == named_.end() ? "" : it->second;
}

void VocabularyReader::check_ids() {
  std::ranges::sort(d_.added, {}, &AddedToken::id);
  auto count = static_cast<int32_t>(keys_.size());
  for (int32_t i = 0; i < count; ++i) {
    if (!keys_.count(i)) {
      refuse("ids are not contiguous: there are {} tokens, but none has id {}; expected 0 to {}", count, i,
             count - 1);
    }
  }
  d_.tokens.resize(count);
  d_.reachable.assign(count, false);
  for (const auto& [at, key] : keys_) {
    auto of_model = model_bytes_.find(at);
    d_.tokens[at] = of_model == model_bytes_.end() ? key : of_model->second.first;
    d_.reachable[at] = of_model != model_bytes_.end() && of_model->second.second;
  }
}

int32_t VocabularyReader::id_of(const std::string& token, std::string_view role) const {
  if (token.empty()) return -1;
  auto it = ids_.find(token);
  if (it == ids_.end()) refuse("{} is '{}', which is not in the vocabulary", role, token);
  return it->second;
}

}  // namespace ottava::tokenizer
