#include "apps/generate/text_stream.h"

#include <cmath>
#include <vector>

#include "apps/generate/sample_token.h"
#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;

namespace {

/// What a text shows that comes in pieces; "|" where nothing waits at the end of a piece.
std::string shown(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  TextStream stream(std::move(stops));
  std::string text;
  for (const std::string& piece : pieces) text += stream.take(piece) + "|";
  return text + stream.rest() + (stream.stopped() ? "." : "");
}

}  // namespace

TEST_CASE("text stops at the first stop string, wherever it is cut") {
  CHECK(shown({"END"}, {"one ", "two END three", "four"}) == "one |two ||.");
  CHECK(shown({"END"}, {"one E", "N", "D two"}) == "one |||.");
  CHECK(shown({"END"}, {"one E", "N", "E", "ND."}) == "one ||EN||.");
  CHECK(shown({"\n\n", "two"}, {"one\n", "two\n\n"}) == "one|\n|.");
  CHECK(shown({"b", "abc"}, {"a", "b"}) == "|a|.");
  CHECK(shown({"END"}, {"it is the E", "N"}) == "it is the ||EN");
  CHECK(shown({}, {"a", "b"}) == "a|b|");
  CHECK_THROWS_WITH(TextStream({"x", ""}),
                    "[generate] a stop string is empty: it would stop every text at once");
}

TEST_CASE("characters are shown whole, and bytes that are none as they come") {
  CHECK(shown({}, {"a\xe4\xb8", "\x80z"}) == "a|\u4e00z|");
  CHECK(shown({}, {"\xf0", "\x9f", "\x98", "\x80"}) == "|||\U0001F600|");
  CHECK(shown({}, {"\x80\x80\x80\x80"}) == "\x80\x80\x80\x80|");
  CHECK(shown({}, {"a\xff"}) == "a|\xff");
  CHECK(shown({}, {"caf\xc3"}) == "caf|\xc3");
}

TEST_CASE("a repetition penalty makes tokens that were there less likely, each once") {
  std::vector<float> logits = {2, -2, 1, 4};
  penalise_repetition(logits, std::vector<int32_t>{0, 1, 0, 1}, 2);
  CHECK(logits == std::vector<float>{1, -4, 1, 4});
  penalise_repetition(logits, std::vector<int32_t>{3}, 1);
  CHECK(logits == std::vector<float>{1, -4, 1, 4});
}

TEST_CASE("a token is drawn by its probability, among those that top_k, top_p and min_p leave") {
  std::vector<float> logits;
  for (const double weight : {1, 4, 2, 1}) logits.push_back(static_cast<float>(std::log(weight)));
  const auto drawn = [&](const Sampling& sampling) {
    std::vector<int32_t> tokens;
    for (const double uniform : {0.0, 0.49, 0.51, 0.74, 0.76, 0.87, 0.88, 0.999})
      tokens.push_back(sample_token(logits.data(), 4, sampling, uniform));
    return tokens;
  };
  using Tokens = std::vector<int32_t>;
  // The likeliest first, equal ones by their ids: 4, 2, 1 and 1 eighths.
  CHECK(drawn({}) == Tokens{1, 1, 2, 2, 0, 0, 3, 3});
  CHECK(drawn({.top_k = 2}) == Tokens{1, 1, 1, 2, 2, 2, 2, 2});
  CHECK(drawn({.top_k = 1}) == Tokens(8, 1));
  CHECK(drawn({.top_p = 0.6}) == Tokens{1, 1, 1, 2, 2, 2, 2, 2});
  CHECK(drawn({.top_p = 0.8}) == Tokens{1, 1, 1, 2, 2, 0, 0, 0});
  CHECK(drawn({.top_p = 0.45}) == Tokens(8, 1));
  CHECK(drawn({.top_k = 3, .top_p = 0.85}) == Tokens{1, 1, 1, 2, 2, 2, 2, 2});  // of 4, 2 and 1 sevenths
  CHECK(drawn({.min_p = 0.49}) == Tokens{1, 1, 1, 2, 2, 2, 2, 2});              // 2 is half of 4
  CHECK(drawn({.min_p = 0.51}) == Tokens(8, 1));
  CHECK(drawn({.min_p = 0.24}) == drawn({}));
  CHECK(drawn({.top_p = 0.8, .min_p = 0.2}) == drawn({.top_p = 0.8}));
  CHECK(drawn({.temperature = 0.5, .min_p = 0.26}) == Tokens(8, 1));  // 4 is a quarter of 16
  // Squares: 16, 4, 1 and 1 parts of 22.
  CHECK(drawn({.temperature = 0.5}) == Tokens{1, 1, 1, 2, 2, 2, 2, 3});
  CHECK(drawn({.temperature = 0}) == Tokens(8, 1));
  // How far logits are apart counts: of these, exponentials are larger than any number.
  logits = {0, 1000, 1000, 0};
  CHECK(drawn({}) == Tokens{1, 1, 2, 2, 2, 2, 2, 2});
}

TEST_CASE("logits that are not finite make no token") {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const std::vector<float> logits = {1, bad, 3};
    for (const double temperature : {0.0, 1.0})
      CHECK_THROWS_AS(sample_token(logits.data(), 3, {.temperature = temperature}, 0.5), NumericsError);
  }
}
