#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::tokenizer {

/// A token matched in the text before anything else (HF `added_tokens`).
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;
  bool normalized = false;   ///< matched after the normalizer instead of before it
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
  bool single_word = false;  ///< only where no word character adjoins it
};

/// One step that cuts text into pieces; every later step works inside the pieces.
struct SplitStep {
  std::string regex;              ///< its matches, and what lies between them, become pieces; empty: no cut
  bool literal = false;           ///< `regex` is plain text
  bool add_prefix_space = false;  ///< before cutting, a piece that does not start with a space gets one
};

/// Two neighbours that become one token; earlier merges go first.
struct Merge {
  int32_t left, right, result;
};

/// Two neighbours as one number.
constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// How the keys of a vocabulary stand for bytes.
enum class KeyStyle {
  byte_level,  ///< GPT-2's printable stand-in for each byte
  raw          ///< the text itself, bytes above 127 written as \xHH
};

/// What the files say, checked and resolved to ids: the whole of a tokenizer as plain data.
struct TokenizerDefinition {
  std::vector<std::string> tokens;  ///< bytes by id; for a token that is only an added token, its content
  std::vector<bool> reachable;      ///< by id: in the model's vocabulary, with a key that stands for bytes
  std::vector<Merge> merges;        ///< by rank
  std::vector<AddedToken> added;
  std::vector<SplitStep> steps;
  KeyStyle key_style = KeyStyle::byte_level;
  bool nfc = false;
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
  int32_t bos_id = -1, eos_id = -1, pad_id = -1;  ///< -1: none
  bool adds_bos = false, adds_eos = false;        ///< whether the template has them
};

/// The texts of tokenizer.json, tokenizer_config.json and special_tokens_map.json; of the last two, an empty
/// one stands for no file.
struct TokenizerTexts {
  std::string tokenizer_json, config_json, special_tokens_map = {};
};

/// Reads the files' texts. Tokens of the vocabulary that the last two files name (bos_token, pad_token, ...)
/// become special tokens, as in transformers. Throws FileError whose message starts with the name of the
/// file.
TokenizerDefinition read_definition(const TokenizerTexts& texts, const std::string& name);

/// HF `tokenizers` reads these texts to the same ids; there is no special_tokens_map. The definition has
/// byte-level keys, special tokens after all others, and at most one split step.
TokenizerTexts write_definition(const TokenizerDefinition& definition);

/// Whether texts begin with BOS.
enum class TextStart { text, bos };
/// The text of a tokenizer.json after which readers of only that file encode as we do texts that begin with
/// `start`: `tokenizer_json`, from which `definition` was read, with all added tokens of the definition, and
/// a post-processor whose template has BOS or none. The same bytes where nothing is to change.
std::string edit_definition(std::string_view tokenizer_json, const TokenizerDefinition& definition,
                            TextStart start);

}  // namespace ottava::tokenizer
