#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// What encode() does beyond the text itself.
struct EncodeOptions {
  enum class SpecialText {
    parse,  ///< text that spells a special token becomes that token, as HF does
    plain   ///< it is text like any other
  };
  bool add_bos = false;  ///< put BOS first; a tokenizer without BOS adds none
  bool add_eos = false;  ///< put EOS last; a tokenizer without EOS adds none
  SpecialText special_text = SpecialText::parse;
};

/// What decode() does with special tokens.
struct DecodeOptions {
  enum class SpecialTokens { keep, drop };
  SpecialTokens special_tokens = SpecialTokens::keep;
};

/// A byte-level BPE tokenizer, as described by HF `tokenizer.json` files of Llama 3, GPT-2 and Qwen. Ids
/// equal those of HF `tokenizers` for every valid UTF-8 text whose characters both know (README.md). Bytes
/// that are not UTF-8 are kept: each ill-formed run is a word of its own, so decode(encode(x)) == x for any
/// bytes (up to what the file itself asks for: NFC, prefix space, lstrip/rstrip). Immutable; every member may
/// be called from any number of threads at once.
class Tokenizer {
 public:
  /// `path` is a tokenizer.json, or a folder with one and perhaps a tokenizer_config.json and a
  /// special_tokens_map.json. Throws FileError for a file that is missing or malformed, or that asks for
  /// something that would change ids if ignored; where the system fails, after three attempts (attempts.h).
  static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& path);
  /// The same from the files' texts; an empty config_json stands for no tokenizer_config.json. `name` is for
  /// errors.
  static std::shared_ptr<const Tokenizer> parse(std::string_view tokenizer_json, std::string_view config_json,
                                                const std::string& name);
  ~Tokenizer();

  /// Ids are 0 .. vocab_size() - 1 without gaps, special tokens included.
  int32_t vocab_size() const;
  /// As tokenizer_config.json or special_tokens_map.json name them (bos_token, eos_token, pad_token), else
  /// from the post-processor's template.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  /// Whether the template of tokenizer.json puts BOS or EOS around every text. As in transformers 5,
  /// add_bos_token and add_eos_token of tokenizer_config.json do not count. encode() does only what its
  /// options say; a caller that follows the files passes these.
  bool adds_bos() const;
  bool adds_eos() const;

  /// Appends the ids of `text` to `out`. About 20 MB/s per core on English; O(n log n) for any text. Throws
  /// DataError if a pattern backtracks without end on this text.
  void encode(std::string_view text, std::vector<int32_t>& out, const EncodeOptions& options = {}) const;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// `text` as encode() cuts it into tokens: in Normalization Form C if the file asks for it.
  std::string normalized(std::string_view text) const;
  /// The bytes of the ids, concatenated; a model's output need not be valid UTF-8. Throws DataError for an
  /// id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  /// Whether words are cut as those of Qwen2: Normalization Form C, then the pattern of that tokenizer alone.
  bool cuts_as_qwen2() const;

  /// Bytes of one token. Throws DataError for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  /// Whether the id is a special token (added_tokens with special: true).
  bool is_special(int32_t id) const;
  /// The id of a special or added token, or of the token with these bytes.
  std::optional<int32_t> token_id(std::string_view bytes) const;

  /// XXH64 over everything that decides ids, BOS and EOS included. Equal for two files that differ only in
  /// layout, padding token, adds_bos() or adds_eos().
  uint64_t fingerprint() const;
  /// One line per property, for people: model, vocabulary, patterns, special tokens, anything odd about the
  /// file.
  std::string describe() const;
  /// `tokenizer_json`, the text it was read from, changed for programs that read no other file of it: they
  /// add BOS if `begins_with_bos` and else not, and find every added token. Expects BOS if `begins_with_bos`.
  std::string edited_json(std::string_view tokenizer_json, bool begins_with_bos) const;
  /// The files it was read from (to copy beside a checkpoint); empty after parse().
  const std::vector<std::filesystem::path>& files() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace ottava
