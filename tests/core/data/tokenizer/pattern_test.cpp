#include "core/data/tokenizer/pattern.h"

#include <string>
#include <vector>

#include "core/data/tokenizer/oniguruma.h"
#include "core/data/tokenizer/pretokenizer.h"
#include "core/data/tokenizer/split_patterns.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::tokenizer;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

namespace {

std::vector<std::string> pieces_of(const Pretokenizer& pretokenizer, std::string_view text) {
  Pattern::Scratch scratch;
  std::vector<std::string> pieces;
  pretokenizer.split(text, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

}  // namespace

TEST_CASE("patterns cut texts where HF tokenizers do") {
  const Json golden =
      Json::parse(read_file(OTTAVA_SOURCE_DIR "/tests/golden/tokenizer/patterns.json"), "golden");
  const auto& texts = golden.at("texts", "golden").as_array("texts");
  const auto& cases = golden.at("cases", "golden").as_array("cases");
  REQUIRE(cases.size() > 30);
  REQUIRE(texts.size() > 10);
  for (const Json& one : cases) {
    const std::string& pattern = one.at("pattern", "case").as_string("pattern");
    const Pretokenizer pretokenizer({{.regex = pattern}});
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO(pattern << " on " << texts[i].dump());
      std::vector<std::string> expected;
      for (const Json& piece : one.at("pieces", "case").as_array("pieces")[i].as_array("pieces"))
        expected.push_back(piece.as_string("piece"));
      CHECK(pieces_of(pretokenizer, texts[i].as_string("text")) == expected);
    }
  }
}

TEST_CASE("a pattern that means something else to HF's engine is refused by what it has") {
  const auto expect = [](std::string_view pattern, const std::string& what) {
    INFO(pattern);
    CHECK_THROWS_WITH(Pattern::regex(pattern),
                      Contains("split pattern '" + std::string(pattern) + "' has " + what));
    CHECK_THROWS_AS(Pattern::regex(pattern), FileError);
  };
  expect("[a-z[0-9]]", "a class within a class at byte 4");
  expect("[a[^b]]", "a class within a class at byte 2");
  expect("[[=a=]]", "a class within a class at byte 1");
  for (const char* pattern :
       {"[a-z&&b]", "[a-z&&[b-d]]", "[^a&&[^b]]", "[a&&[^b]c]", "[a&&[^b]&&[^c]]", "[a&&]", "[a&&[^b"})
    expect(pattern, "another intersection of classes than [A&&[^B]]");
  expect("[&&[^b]]", "another intersection of classes");
  expect("[a&&[^b[c]]]", "a class within a class at byte 7");
  expect("\\Qa.b\\E", "\\Q at byte 0");
  expect("a\\E", "\\E at byte 1");
  expect("[\\V]", "\\V at byte 1");
  expect("a\\b", "\\b at byte 1");
  expect("\\B", "\\B at byte 0");
  expect("[a\\W]", "\\W in a class at byte 2");
  expect("[[:graph:]]", "[:graph:] at byte 1");
  expect("\\p{N}{1,3}+", "an interval with + behind it at byte 5");
  expect("\\d{2}?", "an interval of one number with ? behind it at byte 2");
  expect("\\X", "\\X at byte 0");
  expect("a\\pL", "\\p without braces at byte 1");
  expect("a{,3}", "an interval without its first number at byte 1");
  CHECK_THROWS_WITH(Pattern::regex("[a"), Contains("is not a regular expression"));
  CHECK_THROWS_WITH(Pattern::regex("\\p{Hanx"), Contains("is not a regular expression"));
  CHECK_THROWS_WITH(Pattern::regex("a\\"), Contains("is not a regular expression"));
  CHECK_THROWS_WITH(Pattern::regex("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9("),
                    EndsWith("near '\u00e9\u00e9\u00e9\u00e9\u00e9('"));
}

TEST_CASE("a long run of what an intersection takes is one word") {
  const std::string run(1 << 20, 'a');
  CHECK(pieces_of(Pretokenizer({{.regex = "[a-z&&[^b]]+"}}), run) == std::vector<std::string>{run});
}

TEST_CASE("a long run of white space is cut as a short one, and a pattern without end is refused") {
  const std::string text = std::string(11'000'000, ' ') + "x";
  for (std::string_view pattern : {kLlama3Pattern, kGpt2Pattern, kQwen2Pattern}) {
    Pattern::Scratch scratch;
    Pattern::Match match{};
    INFO(pattern);
    REQUIRE(Pattern::regex(pattern).find(scratch, text, 0, match));
    CHECK(match.begin == 0);
    CHECK(match.end == text.size() - 2);
  }
  Pattern::Scratch scratch;
  Pattern::Match match{};
  CHECK_THROWS_WITH(Pattern::regex("(?:a+)+[bc]").find(scratch, std::string(60, 'a') + "d", 0, match),
                    Contains("failed at byte 0 of a text of 61 bytes: match limit exceeded"));
}

TEST_CASE("the models' usual patterns mean the same in both engines") {
  for (std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern})
    CHECK_FALSE(needs_oniguruma(pattern));
  for (const char* pattern : {"^a", "a$", "\\h", "[\\H]", "\\v", "[\\v]", "(?m:.)", "[a&&[^b]]"})
    CHECK(needs_oniguruma(pattern));
  CHECK_FALSE(needs_oniguruma("[^$^]\\$\\^\\p{L}(?i:m)(?!m)"));
}
