#include "core/data/tokenizer/definition.h"
#include "core/data/tokenizer/split_patterns.h"
#include "core/data/tokenizer/vocabulary_reader.h"

namespace ottava::tokenizer {
namespace {

/// What happens to text before and after its words become tokens.
class Reader : VocabularyReader {
 public:
  using VocabularyReader::VocabularyReader;

  TokenizerDefinition read(const TokenizerTexts& texts) {
    const auto beside = [&](const std::string& text, const char* file) {
      if (text.empty()) return Json();
      Json root = Json::parse(text, fmt::format("{} beside {}", file, name_));
      if (!root.is_object()) refuse("{}: expected a JSON object, got {}", file, quoted(root));
      return root;
    };
    Json file = Json::parse(texts.tokenizer_json, name_);
    if (!file.is_object()) refuse("expected a JSON object, got {}", quoted(file));
    const Json config = beside(texts.config_json, "tokenizer_config.json"),
               map = beside(texts.special_tokens_map, "special_tokens_map.json");
    read_model(member(file, "model"));
    read_added(file, config);
    read_named(config, map);
    check_ids();
    read_normalizer(get(file, "normalizer"));
    read_pre_tokenizer(get(file, "pre_tokenizer"));
    read_decoder(get(file, "decoder"));
    std::string prefix, suffix;
    read_post_processor(get(file, "post_processor"), prefix, suffix);
    read_marks(prefix, suffix);
    return std::move(d_);
  }

 private:
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
      // After ByteLevel the text consists of stand-ins for bytes, for which the patterns of later steps are
      // not written.
      if (byte_level) refuse("pre-tokenizer '{}' after ByteLevel is not supported", type);
      if (type == "ByteLevel") {
        byte_level = true;
        SplitStep step;
        step.add_prefix_space = boolean(one, "add_prefix_space", true);
        if (boolean(one, "use_regex", true)) step.regex = kGpt2Pattern;
        if (!step.regex.empty() || step.add_prefix_space) d_.steps.push_back(step);
      } else if (type == "Split") {
        d_.steps.push_back(read_split(one));
      } else if (type == "Digits") {
        d_.steps.push_back({.regex = boolean(one, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"});
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
      check_template_token(place, get(section, "special_tokens"));
    }
    if (!text_seen) refuse("the template for a single text has no place for the text");
  }

  /// HF encodes with the ids that the template has itself, whatever the vocabulary says.
  void check_template_token(const std::string& token, const Json& of_template) const {
    const Json& entry = of_template.is_object() ? get(of_template, token.c_str()) : of_template;
    const Json& ids = get(entry, "ids");
    if (!ids.is_array()) refuse("the template adds '{}', but its special_tokens have no ids for it", token);
    const Json::Array& all = ids.as_array("ids");
    if (all.size() != 1) refuse("the template adds {} ids for '{}'; expected 1", all.size(), token);
    const int32_t of_vocabulary = id_of(token, "a special token of the template"), here = id(all[0], token);
    if (here != of_vocabulary) {
      refuse("the template adds id {} for '{}', but the vocabulary gives it {}: correct the template", here,
             token, of_vocabulary);
    }
  }

  void read_marks(const std::string& prefix, const std::string& suffix) {
    std::string bos = named("bos_token"), eos = named("eos_token");
    auto agree = [&](std::string& token, const std::string& in_template, const char* key) {
      if (token.empty()) token = in_template;
      if (!in_template.empty() && token != in_template) {
        refuse("the post-processor adds '{}', but {} is '{}'", in_template, key, token);
      }
    };
    agree(bos, prefix, "bos_token");
    agree(eos, suffix, "eos_token");
    d_.bos_id = id_of(bos, "bos_token");
    d_.eos_id = id_of(eos, "eos_token");
    d_.pad_id = id_of(named("pad_token"), "pad_token");
    // As transformers 5 does beside a tokenizer.json, whatever add_bos_token and add_eos_token say.
    d_.adds_bos = !prefix.empty();
    d_.adds_eos = !suffix.empty();
  }
};

}  // namespace

TokenizerDefinition read_definition(const TokenizerTexts& texts, const std::string& name) {
  return Reader(name).read(texts);
}

}  // namespace ottava::tokenizer
