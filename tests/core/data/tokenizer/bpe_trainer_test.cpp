#include "core/data/tokenizer/bpe_trainer.h"

#include <map>
#include <set>

#include "core/data/tokenizer/pair_counts.h"
#include "core/data/tokenizer/tokenizer.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::tokenizer;

namespace {

BpeTrainerOptions plain(int32_t vocab_size) {
  return {.vocab_size = vocab_size,
          .rules = WordRules::gpt2,
          .special_tokens = {},
          .bos_token = "",
          .eos_token = ""};
}

TokenizerDefinition train(const BpeTrainerOptions& options, std::string_view text) {
  BpeTrainer trainer(options);
  trainer.add(text);
  return trainer.train();
}

/// The rule itself: count all pairs of all words again for every merge.
std::vector<Merge> by_counting_again(std::vector<std::pair<std::vector<int32_t>, int64_t>> words,
                                     int32_t merges) {
  std::vector<Merge> out;
  for (int32_t next = 256; next < 256 + merges; ++next) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& [ids, count] : words) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
    }
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (it->second > best->second) best = it;  // the map's order: smallest ids first
    }
    out.push_back({best->first.first, best->first.second, next});
    for (auto& [ids, count] : words) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < ids.size(); ++i) {
        bool here = i + 1 < ids.size() && ids[i] == out.back().left && ids[i + 1] == out.back().right;
        merged.push_back(here ? next : ids[i]);
        i += here;
      }
      ids = merged;
    }
  }
  return out;
}

const char* const kText =
    "low low low low low lower lower newest newest newest newest newest newest widest widest widest";

}  // namespace

TEST_CASE("the pair seen most often becomes a token") {
  // The example of arXiv:1508.07909: es (9 times), est, then lo; here words carry the space in front of them.
  auto d = train(plain(259), kText);
  REQUIRE(d.tokens.size() == 259);
  CHECK(d.tokens[256] == "es");
  CHECK(d.tokens[257] == "est");
  CHECK(d.tokens[258] == "lo");
}

TEST_CASE("counts kept up to date are those of counting again") {
  std::unordered_map<std::string, int64_t> words;
  std::vector<std::pair<std::vector<int32_t>, int64_t>> same;
  uint64_t state = 1;
  for (int w = 0; w < 120; ++w) {
    std::string word;
    for (int i = 0; i < 3 + w % 12; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      word.push_back("aab"[(state >> 40) % 3]);  // long runs of one letter overlap with themselves
    }
    words[word] += 1 + w % 5;
  }
  for (const auto& [word, count] : words)
    same.push_back({std::vector<int32_t>(word.begin(), word.end()), count});
  auto expected = by_counting_again(same, 40);
  PairCounts counts(words);
  for (int32_t i = 0; i < 40; ++i) {
    auto best = counts.best();
    INFO(i);
    REQUIRE(best.left == expected[i].left);
    REQUIRE(best.right == expected[i].right);
    counts.merge({best.left, best.right, 256 + i});
  }
}

TEST_CASE("the order of texts does not matter") {
  BpeTrainer forward(plain(280)), backward(plain(280));
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i) texts.push_back(std::string(kText).substr(i, 40));
  for (const auto& text : texts) forward.add(text);
  for (size_t i = texts.size(); i-- > 0;) backward.add(texts[i]);
  CHECK(write_definition(forward.train()).tokenizer_json ==
        write_definition(backward.train()).tokenizer_json);
  CHECK(forward.bytes() == backward.bytes());
  CHECK(forward.distinct_words() > 10);
}

TEST_CASE("what is written is read to the same tokenizer") {
  for (WordRules rules : {WordRules::llama3, WordRules::gpt2, WordRules::qwen2}) {
    BpeTrainerOptions options{.vocab_size = 274, .rules = rules};
    options.special_tokens.push_back("<\u00e9 \"x\">");
    auto d = train(options, kText);
    auto texts = write_definition(d);
    auto back = read_definition(texts, "t.json");
    CHECK(back.tokens == d.tokens);
    CHECK(back.reachable == d.reachable);
    REQUIRE(back.merges.size() == d.merges.size());
    REQUIRE_FALSE(d.merges.empty());
    for (size_t i = 0; i < d.merges.size(); ++i) {
      CHECK(back.merges[i].left == d.merges[i].left);
      CHECK(back.merges[i].right == d.merges[i].right);
      CHECK(back.merges[i].result == d.merges[i].result);
    }
    REQUIRE(back.steps.size() == 1);
    CHECK(back.steps[0].regex == d.steps[0].regex);
    CHECK(back.nfc == (rules == WordRules::qwen2));
    CHECK(back.ignore_merges == (rules == WordRules::llama3));
    CHECK(back.adds_bos);
    CHECK_FALSE(back.adds_eos);
    CHECK(back.bos_id == 271);
    CHECK(back.eos_id == 272);
    auto t = Tokenizer::parse(texts.tokenizer_json, texts.config_json, "t.json");
    CHECK(t->vocab_size() == 274);
    CHECK(t->encode(" newest<\u00e9 \"x\">").back() == 273);
    CHECK(t->decode(t->encode(kText)) == kText);
  }
}

TEST_CASE("special tokens in the text are not learnt from") {
  BpeTrainerOptions options{.vocab_size = 260};
  BpeTrainer with(options), without(options);
  with.add("low low<|end_of_text|>low low low");
  without.add("low low");
  without.add("low low low");
  CHECK(write_definition(with.train()).tokenizer_json == write_definition(without.train()).tokenizer_json);
}

TEST_CASE("no two pairs spell one token") {
  // Few letters in words of any length: runs that overlap with themselves, and every way to split.
  BpeTrainer trainer(plain(600));
  uint64_t state = 1;
  for (int w = 0; w < 3000; ++w) {
    std::string word;
    for (int i = 0; i < 2 + w % 14; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      word.push_back("aaab"[(state >> 40) % 4]);
    }
    trainer.add(word);
  }
  const TokenizerDefinition d = trainer.train();
  CHECK(std::set<std::string>(d.tokens.begin(), d.tokens.end()).size() == 600);
  for (const Merge& m : d.merges) CHECK(d.tokens[m.left] + d.tokens[m.right] == d.tokens[m.result]);
}

TEST_CASE("impossible wishes are refused") {
  CHECK_THROWS_WITH(BpeTrainer({.vocab_size = 257}),
                    "[tokenizer train] vocabulary size is 257; expected at least 258: "
                    "256 bytes and 2 special tokens");
  CHECK_THROWS_WITH(
      BpeTrainer({.vocab_size = 300, .special_tokens = {"<s>"}, .bos_token = "<t>", .eos_token = ""}),
      "[tokenizer train] BOS token '<t>' is not one of the special tokens ('<s>'): name one of them with "
      "--bos-token (\"\": none), or add it to --special-tokens, which replaces the usual ones");
  CHECK_THROWS_WITH(
      BpeTrainer({.vocab_size = 300, .special_tokens = {"<s>"}, .bos_token = "", .eos_token = "<t>"}),
      "[tokenizer train] EOS token '<t>' is not one of the special tokens ('<s>'): name one of them with "
      "--eos-token (\"\": none), or add it to --special-tokens, which replaces the usual ones");
  auto with_specials = [](std::vector<std::string> tokens) {
    BpeTrainer({.vocab_size = 300, .special_tokens = std::move(tokens), .bos_token = "", .eos_token = ""});
  };
  CHECK_THROWS_WITH(with_specials({"<s>", "<s>"}), "[tokenizer train] special token '<s>' is given twice");
  CHECK_THROWS_WITH(with_specials({""}), "[tokenizer train] a special token is empty");
  CHECK_THROWS_WITH(with_specials({"x"}), "[tokenizer train] special token 'x' is a single byte");
  CHECK_THROWS_WITH(with_specials({"ok", "\xff\xfe"}),
                    "[tokenizer train] special token number 2 is not UTF-8");
  CHECK_THROWS_WITH(
      train(plain(300), "aab aab"),
      "[tokenizer train] the text has pairs that occur at least 2 times for only 258 tokens, expected 300: "
      "use more text (7 bytes, 2 different words so far) or a vocabulary of at most 258");
  try {
    train(plain(300), "aab aab");
  } catch (const TooLittleText& error) {
    CHECK(error.largest == 258);
  }
  CHECK_THROWS_WITH(word_rules("bert"),
                    "[tokenizer train] word rules 'bert' are unknown; expected llama3, gpt2 or qwen2");
  CHECK(word_rules("qwen2") == WordRules::qwen2);
}
