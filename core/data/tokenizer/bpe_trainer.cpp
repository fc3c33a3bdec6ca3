#include "core/data/tokenizer/bpe_trainer.h"

#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/contains.h"
#include "core/data/tokenizer/added_token_matcher.h"
#include "core/data/tokenizer/pair_counts.h"
#include "core/data/tokenizer/pretokenizer.h"
#include "core/data/tokenizer/split_patterns.h"
#include "core/data/tokenizer/unicode.h"
#include "core/error.h"
#include "core/io/utf8.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava::tokenizer {
namespace {

constexpr int32_t kBytes = 256;
constexpr int64_t kLeastCount = 2;  // pairs seen less often are not merged

/// What the rules say, and the 256 bytes.
TokenizerDefinition base_definition(WordRules rules) {
  TokenizerDefinition d;
  std::string_view pattern = rules == WordRules::llama3 ? kLlama3Pattern
                             : rules == WordRules::gpt2 ? kGpt2Pattern
                                                        : kQwen2Pattern;
  d.steps.push_back({.regex = std::string(pattern), .literal = false, .add_prefix_space = false});
  d.nfc = rules == WordRules::qwen2;
  d.ignore_merges = rules == WordRules::llama3;
  for (int b = 0; b < kBytes; ++b) d.tokens.push_back(std::string(1, static_cast<char>(b)));
  return d;
}

void check(const BpeTrainerOptions& o) {
  constexpr std::string_view where = "tokenizer train";
  int64_t least = kBytes + std::ssize(o.special_tokens);
  if (o.vocab_size < least) {
    fail<ConfigError>(where, "vocabulary size is {}; expected at least {}: 256 bytes and {}", o.vocab_size,
                      least, counted(o.special_tokens.size(), "special token"));
  }
  std::unordered_set<std::string> seen;
  for (const std::string& token : o.special_tokens) {
    if (token.empty()) fail<ConfigError>(where, "a special token is empty");
    if (well_formed_end(token, 0) != token.size()) {
      fail<ConfigError>(where, "special token number {} is not UTF-8", seen.size() + 1);
    }
    // A lone byte is in the vocabulary already.
    if (token.size() == 1) fail<ConfigError>(where, "special token '{}' is a single byte", token);
    if (!seen.insert(token).second) fail<ConfigError>(where, "special token '{}' is given twice", token);
  }
  const auto quoted = [](const std::string& token) { return fmt::format("'{}'", token); };
  for (const auto& [token, role, option] :
       {std::tuple{&o.bos_token, "BOS", "--bos-token"}, std::tuple{&o.eos_token, "EOS", "--eos-token"}}) {
    if (token->empty() || seen.count(*token)) continue;
    fail<ConfigError>(where,
                      "{} token '{}' is not one of the special tokens ({}): name one of them with {} (\"\": "
                      "none), or add it to --special-tokens, which replaces the usual ones",
                      role, *token, listed(o.special_tokens, quoted), option);
  }
}

std::vector<AddedToken> special_tokens(const BpeTrainerOptions& o) {
  std::vector<AddedToken> out;
  auto first = o.vocab_size - static_cast<int32_t>(o.special_tokens.size());
  for (const std::string& content : o.special_tokens) {
    out.push_back({.content = content, .id = first + static_cast<int32_t>(out.size()), .special = true});
  }
  return out;
}

}  // namespace

WordRules word_rules(std::string_view name) {
  if (name == "llama3") return WordRules::llama3;
  if (name == "gpt2") return WordRules::gpt2;
  if (name == "qwen2") return WordRules::qwen2;
  fail<ConfigError>("tokenizer train", "word rules '{}' are unknown; expected llama3, gpt2 or qwen2", name);
}

struct BpeTrainer::State {
  explicit State(BpeTrainerOptions o)
      : options(std::move(o)),
        base(base_definition(options.rules)),
        pretokenizer(base.steps),
        specials(special_tokens(options)) {}

  BpeTrainerOptions options;
  TokenizerDefinition base;
  Pretokenizer pretokenizer;
  AddedTokenMatcher specials;
  Pattern::Scratch scratch;
  std::unordered_map<std::string, int64_t> words;
  int64_t bytes = 0;
};

BpeTrainer::BpeTrainer(BpeTrainerOptions options) {
  check(options);
  state_ = std::make_unique<State>(std::move(options));
}
BpeTrainer::~BpeTrainer() = default;

int64_t BpeTrainer::bytes() const { return state_->bytes; }
int64_t BpeTrainer::distinct_words() const { return std::ssize(state_->words); }

void BpeTrainer::add(std::string_view text) {
  State& s = *state_;
  s.bytes += std::ssize(text);
  std::string key;
  auto count = [&](std::string_view word) {
    key.assign(word);
    ++s.words[key];
  };
  std::vector<AddedTokenMatcher::Piece> pieces;
  s.specials.split(text, AddedTokenMatcher::Specials::found, pieces);
  for (const auto& piece : pieces) {
    if (piece.id >= 0) continue;
    std::string normalized;
    s.pretokenizer.split(s.base.nfc ? in_nfc(piece.text, normalized) : piece.text, s.scratch, count);
  }
}

TokenizerDefinition BpeTrainer::train() const {
  const BpeTrainerOptions& o = state_->options;
  TokenizerDefinition d = state_->base;
  auto model_size = static_cast<size_t>(o.vocab_size) - o.special_tokens.size();
  PairCounts counts(state_->words);
  while (d.tokens.size() < model_size) {
    PairCounts::Best best = counts.best();
    if (best.count < kLeastCount) {
      const auto largest = std::ssize(d.tokens) + std::ssize(o.special_tokens);
      throw TooLittleText(
          fmt::format("the text has pairs that occur at least {} times for only {} tokens, expected {}: use "
                      "more text ({}, {} so far) or a vocabulary of at most {}",
                      kLeastCount, d.tokens.size(), model_size, counted(bytes(), "byte"),
                      counted(distinct_words(), "different word"), largest),
          largest);
    }
    // No two pairs spell one token: bytes whose ends no merge crosses are merged alike wherever they stand,
    // so once a pair of tokens has become theirs, they are that one token everywhere.
    d.merges.push_back({best.left, best.right, static_cast<int32_t>(d.tokens.size())});
    d.tokens.push_back(d.tokens[best.left] + d.tokens[best.right]);
    counts.merge(d.merges.back());
  }
  d.reachable.assign(d.tokens.size(), true);
  d.added = special_tokens(o);
  for (const AddedToken& token : d.added) {
    // A special token that also grew by merging would have two ids.
    if (contains(d.tokens, token.content)) {
      fail<ConfigError>("tokenizer train",
                        "special token '{}' is an ordinary token of this text: choose a rarer one",
                        token.content);
    }
    d.tokens.push_back(token.content);
    d.reachable.push_back(false);
    if (token.content == o.bos_token) d.bos_id = token.id;
    if (token.content == o.eos_token) d.eos_id = token.id;
  }
  d.adds_bos = d.bos_id >= 0;
  return d;
}

}  // namespace ottava::tokenizer
