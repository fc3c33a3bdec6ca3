#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/tokenizer/definition.h"
#include "core/error.h"

namespace ottava::tokenizer {

/// Whose rules for cutting text into words the new tokenizer follows.
enum class WordRules {
  llama3,  ///< words that are tokens skip the merges
  gpt2,
  qwen2  ///< text is normalised to NFC
};
/// The rules named "llama3", "gpt2" or "qwen2". Throws ConfigError for any other name.
WordRules word_rules(std::string_view name);

/// What a new tokenizer is to be like.
struct BpeTrainerOptions {
  int32_t vocab_size = 0;  ///< reached exactly: 256 bytes + merges + special tokens
  WordRules rules = WordRules::llama3;
  std::vector<std::string> special_tokens{"<|begin_of_text|>", "<|end_of_text|>"};  ///< they get the last ids
  std::string bos_token = "<|begin_of_text|>";  ///< one of them, put before every text; or empty
  std::string eos_token = "<|end_of_text|>";
};

/// The texts do not have enough repeated pairs for the vocabulary asked for.
struct TooLittleText : DataError {
  TooLittleText(const std::string& message, int64_t most)
      : DataError("tokenizer train", message), largest(most) {}
  int64_t largest;  ///< the largest vocabulary for which they are enough
};

/// Trains byte-level BPE (arXiv:1508.07909), keeping pair counts up to date: the pair seen most often becomes
/// a token; ties go to the pair with the smaller ids. The same texts, in any order, give the same tokenizer
/// on any machine.
class BpeTrainer {
 public:
  /// Throws ConfigError for a vocabulary too small for bytes and special tokens, and for special tokens that
  /// are empty, single bytes, no UTF-8, repeated, or named as BOS or EOS but not given.
  explicit BpeTrainer(BpeTrainerOptions options);
  ~BpeTrainer();

  /// Counts the words of a text. Special tokens in it are left out; they separate what is before them from
  /// what is after.
  void add(std::string_view text);
  int64_t bytes() const;
  int64_t distinct_words() const;

  /// Trains on what was added. Throws TooLittleText, and ConfigError for a special token that has become an
  /// ordinary one.
  TokenizerDefinition train() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ottava::tokenizer
