#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/data/tokenizer/byte_level.h"
#include "core/data/tokenizer/definition.h"
#include "core/data/tokenizer/split_patterns.h"
#include "core/error.h"
#include "core/io/json.h"

namespace ottava::tokenizer {
namespace {

/// The part of a JSON value that a message can quote.
std::string quoted(const Json& value) {
  std::string text = value.is_object() || value.is_array() ? std::string(value.kind()) : value.dump();
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  TokenizerDefinition read(std::string_view tokenizer_json, std::string_view config_json) {
    Json file = Json::parse(tokenizer_json, name_);
    Json config =
        config_json.empty() ? Json() : Json::parse(config_json, "tokenizer_config.json beside " + name_);
    if (!file.is_object()) refuse("expected a JSON object, got {}", quoted(file));
    read_model(member(file, "model"));
    read_added(file, config);
    check_ids();
    read_normalizer(get(file, "normalizer"));
    read_pre_tokenizer(get(file, "pre_tokenizer"));
    read_decoder(get(file, "decoder"));
    std::string prefix, suffix;
    read_post_processor(get(file, "post_processor"), prefix, suffix);
    read_config(config, prefix, suffix);
    return std::move(d_);
  }

 private:
  template <class... A>
  [[noreturn]] void refuse(fmt::format_string<A...> format, A&&... args) const {
    fail<FileError>(name_, "{}", fmt::format(format, std::forward<A>(args)...));
  }

  /// The member, or null if it is not there.
  static const Json& get(const Json& object, const char* key) {
    static const Json null;
    const Json* value = object.find(key);
    return value ? *value : null;
  }
  const Json& member(const Json& object, const char* key) const {
    const Json& value = get(object, key);
    if (value.is_null()) refuse("\"{}\" is missing", key);
    return value;
  }
  bool flag(const Json& object, const char* key, bool otherwise) const {
    const Json& value = get(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_bool()) refuse("\"{}\" must be true or false, got {}", key, quoted(value));
    return value.as_bool(key);
  }
  std::string text(const Json& value, std::string_view what) const {
    if (!value.is_string()) refuse("{} must be a string, got {}", what, quoted(value));
    return value.as_string(what);
  }
  std::string type_of(const Json& section, std::string_view what) const {
    if (!section.is_object()) refuse("{} must be an object, got {}", what, quoted(section));
    return text(get(section, "type"), fmt::format("the type of {}", what));
  }
  int32_t id(const Json& value, std::string_view token) const {
    int64_t number = value.is_integer() ? value.as_integer("id") : -1;
    if (number < 0 || number > INT32_MAX) {
      refuse("token '{}' has id {}; expected an integer from 0 to {}", token, quoted(value), INT32_MAX);
    }
    return static_cast<int32_t>(number);
  }

  void read_model(const Json& model) {
    if (!model.is_object()) refuse("\"model\" must be an object, got {}", quoted(model));
    // GPT-2's own file is older than the field.
    std::string type = get(model, "type").is_null() ? "BPE" : type_of(model, "the model");
    if (type != "BPE") refuse("model type '{}' is not supported; expected BPE", type);
    if (flag(model, "byte_fallback", false)) {
      refuse(
          "byte_fallback belongs to SentencePiece vocabularies, which are not supported; expected byte-level BPE");
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
    d_.ignore_merges = flag(model, "ignore_merges", false);
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object()) refuse("\"vocab\" must be an object of token: id, got {}", quoted(vocab));
    for (const auto& [key, value] : vocab.as_object("vocab")) place(key, id(value, key));
    decode_keys();
    read_merges(member(model, "merges"));
  }

  /// Takes an id for a key. Ids beyond the number of tokens are kept for check_ids to report.
  void place(const std::string& key, int32_t at) {
    auto [other, is_new] = keys_.try_emplace(at, key);
    if (!is_new) refuse("id {} is given twice: to '{}' and to '{}'", at, other->second, key);
    ids_.emplace(key, at);
  }

  void decode_keys() {
    auto missing_byte = [&](auto key_of) {
      for (int b = 0; b < 256; ++b) {
        if (!ids_.count(key_of(b))) return b;
      }
      return -1;
    };
    int missing = missing_byte([&](int b) { return to_byte_level(std::string(1, static_cast<char>(b))); });
    if (missing >= 0) check_raw_keys(missing, missing_byte);
    for (const auto& [key, at] : ids_) model_bytes_.emplace(at, bytes_of(key));
  }

  /// A vocabulary whose keys are the text itself, written by hand or from another format.
  template <class MissingByte>
  void check_raw_keys(int missing, MissingByte missing_byte) {
    d_.key_style = KeyStyle::raw;
    int raw_missing = missing_byte([&](int b) {
      return b < 128 ? std::string(1, static_cast<char>(b)) : fmt::format("\\x{:02x}", b);
    });
    if (raw_missing >= 0) {
      refuse(
          "the vocabulary has no token for byte 0x{:02x} (key U+{:04X}), so some text could not be encoded; "
          "expected a byte-level vocabulary with all 256",
          missing, static_cast<uint32_t>(byte_level_alphabet()[missing]));
    }
  }

  /// The bytes of a key, and whether BPE can produce them.
  std::pair<std::string, bool> bytes_of(const std::string& key) const {
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

  void read_merges(const Json& merges) {
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

  void add(const Json& entry, const Json& at) {
    AddedToken token;
    token.content = text(get(entry, "content"), "the content of an added token");
    if (token.content.empty()) refuse("an added token has no content");
    token.id = id(at, token.content);
    token.special = flag(entry, "special", false);
    token.normalized = flag(entry, "normalized", !token.special);
    token.lstrip = flag(entry, "lstrip", false);
    token.rstrip = flag(entry, "rstrip", false);
    token.single_word = flag(entry, "single_word", false);
    auto known = ids_.find(token.content);
    if (known == ids_.end()) {
      place(token.content, token.id);
    } else if (known->second != token.id) {
      refuse("added token '{}' has id {}, but the vocabulary gives it {}", token.content, token.id,
             known->second);
    }
    // tokenizer.json comes first; tokenizer_config.json mostly repeats it.
    if (added_ids_.insert(token.id).second) d_.added.push_back(token);
  }

  void read_added(const Json& file, const Json& config) {
    const Json& list = get(file, "added_tokens");
    if (!list.is_null() && !list.is_array())
      refuse("\"added_tokens\" must be an array, got {}", quoted(list));
    if (list.is_array()) {
      for (const Json& entry : list.as_array("added_tokens")) add(entry, get(entry, "id"));
    }
    const Json& more = get(config, "added_tokens_decoder");
    if (!more.is_null() && !more.is_object()) {
      refuse("tokenizer_config.json: \"added_tokens_decoder\" must be an object, got {}", quoted(more));
    }
    if (more.is_null()) return;
    for (const auto& [key, entry] : more.as_object("added_tokens_decoder")) {
      bool digits = !key.empty() && key.size() <= 10 && std::all_of(key.begin(), key.end(), [](char c) {
        return c >= '0' && c <= '9';
      });
      if (!digits) refuse("tokenizer_config.json: added_tokens_decoder has key '{}'; expected an id", key);
      add(entry, Json(static_cast<int64_t>(std::stoll(key))));
    }
  }

  void check_ids() {
    std::sort(d_.added.begin(), d_.added.end(), [](auto& a, auto& b) { return a.id < b.id; });
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

  void read_normalizer(const Json& section) {
    if (section.is_null()) return;
    std::string type = type_of(section, "the normalizer");
    if (type == "NFC") {
      d_.nfc = true;
    } else if (type == "Sequence") {
      for (const Json& one : list(section, "normalizers")) read_normalizer(one);
    } else {
      refuse("normalizer '{}' is not supported; expected none or NFC", type);
    }
  }

  const Json::Array& list(const Json& section, const char* key) const {
    const Json& value = get(section, key);
    if (!value.is_array()) refuse("\"{}\" of a Sequence must be an array, got {}", key, quoted(value));
    for (const Json& one : value.as_array(key)) {
      if (!one.is_object()) refuse("\"{}\" has an entry that is no object: {}", key, quoted(one));
      const Json& type = get(one, "type");
      if (type.is_string() && type.as_string(key) == "Sequence") {
        refuse("a Sequence inside a Sequence is not supported (\"{}\")", key);
      }
    }
    return value.as_array(key);
  }

  void read_pre_tokenizer(const Json& section) {
    bool byte_level = false;
    auto read_one = [&](const Json& one) {
      std::string type = type_of(one, "the pre-tokenizer");
      // After ByteLevel the text is stand-ins for bytes, which the patterns of later steps are not written
      // for.
      if (byte_level) refuse("pre-tokenizer '{}' after ByteLevel is not supported", type);
      if (type == "ByteLevel") {
        byte_level = true;
        SplitStep step;
        step.add_prefix_space = flag(one, "add_prefix_space", true);
        if (flag(one, "use_regex", true)) step.regex = kGpt2Pattern;
        if (!step.regex.empty() || step.add_prefix_space) d_.steps.push_back(step);
      } else if (type == "Split") {
        d_.steps.push_back(read_split(one));
      } else if (type == "Digits") {
        d_.steps.push_back({.regex = flag(one, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"});
      } else {
        refuse("pre-tokenizer '{}' is not supported; expected ByteLevel, Split, Digits or a Sequence of them",
               type);
      }
    };
    if (!section.is_null() && type_of(section, "the pre-tokenizer") == "Sequence") {
      for (const Json& one : list(section, "pretokenizers")) read_one(one);
    } else if (!section.is_null()) {
      read_one(section);
    }
    if (!byte_level)
      refuse("there is no ByteLevel pre-tokenizer; only byte-level vocabularies are supported");
  }

  SplitStep read_split(const Json& section) const {
    std::string behavior = text(get(section, "behavior"), "the behavior of Split");
    if (behavior != "Isolated") refuse("Split behavior '{}' is not supported; expected Isolated", behavior);
    const Json& pattern = get(section, "pattern");
    const Json& regex = get(pattern, "Regex");
    const Json& literal = get(pattern, "String");
    if (regex.is_string() == literal.is_string())
      refuse("a Split needs a pattern with either Regex or String");
    SplitStep step{.regex = (regex.is_string() ? regex : literal).as_string("pattern"),
                   .literal = literal.is_string()};
    if (step.regex.empty()) refuse("a Split has an empty pattern");
    return step;
  }

  void read_decoder(const Json& section) const {
    if (section.is_null()) return;
    std::string type = type_of(section, "the decoder");
    if (type == "Sequence") {
      for (const Json& one : list(section, "decoders")) read_decoder(one);
    } else if (type != "ByteLevel" && type != "Fuse") {
      refuse("decoder '{}' is not supported; expected ByteLevel", type);
    }
  }

  /// ByteLevel moves offsets only. A template may put one special token before the text and one after it.
  void read_post_processor(const Json& section, std::string& prefix, std::string& suffix) const {
    if (section.is_null()) return;
    std::string type = type_of(section, "the post-processor");
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      for (const Json& one : list(section, "processors")) read_post_processor(one, prefix, suffix);
      return;
    }
    if (type != "TemplateProcessing") {
      refuse("post-processor '{}' is not supported; expected ByteLevel or TemplateProcessing", type);
    }
    bool text_seen = false;
    const Json& single = get(section, "single");
    if (!single.is_array()) refuse("the template for a single text must be an array, got {}", quoted(single));
    for (const Json& piece : single.as_array("single")) {
      if (!get(piece, "Sequence").is_null() && !text_seen) {
        text_seen = true;
        continue;
      }
      const Json& special = get(piece, "SpecialToken");
      std::string& place = text_seen ? suffix : prefix;
      if (!special.is_object() || !place.empty()) {
        refuse("the template for a single text must be [BOS] text [EOS], each at most once");
      }
      place = text(get(special, "id"), "a special token of the template");
    }
    if (!text_seen) refuse("the template for a single text has no place for the text");
  }

  /// A token named as a string or as an object with its content; empty if it is not named.
  std::string named(const Json& config, const char* key) const {
    const Json& value = get(config, key);
    if (value.is_null()) return "";
    return text(value.is_object() ? get(value, "content") : value,
                fmt::format("tokenizer_config.json: {}", key));
  }
  int32_t id_of(const std::string& token, std::string_view role) const {
    if (token.empty()) return -1;
    auto it = ids_.find(token);
    if (it == ids_.end()) refuse("{} is '{}', which is not in the vocabulary", role, token);
    return it->second;
  }

  void read_config(const Json& config, const std::string& prefix, const std::string& suffix) {
    std::string bos = named(config, "bos_token"), eos = named(config, "eos_token"),
                pad = named(config, "pad_token");
    auto agree = [&](std::string& token, const std::string& in_template, const char* key) {
      if (token.empty()) token = in_template;
      if (!in_template.empty() && token != in_template) {
        refuse("the post-processor adds '{}', but tokenizer_config.json says {} is '{}'", in_template, key,
               token);
      }
    };
    agree(bos, prefix, "bos_token");
    agree(eos, suffix, "eos_token");
    d_.bos_id = id_of(bos, "bos_token");
    d_.eos_id = id_of(eos, "eos_token");
    // Some files name a padding token that was never added; no text is padded here.
    d_.pad_id = ids_.count(pad) ? ids_.at(pad) : -1;
    d_.adds_bos = flag(config, "add_bos_token", !prefix.empty()) && d_.bos_id >= 0;
    d_.adds_eos = flag(config, "add_eos_token", !suffix.empty()) && d_.eos_id >= 0;
  }

  std::string name_;
  TokenizerDefinition d_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> keys_;
  std::unordered_set<int32_t> added_ids_;
  std::unordered_map<int32_t, std::pair<std::string, bool>> model_bytes_;  ///< and whether BPE can make them
};

}  // namespace

TokenizerDefinition read_definition(std::string_view tokenizer_json, std::string_view config_json,
                                    const std::string& name) {
  return Reader(name).read(tokenizer_json, config_json);
}

}  // namespace ottava::tokenizer
