#include "apps/generate/text_stream.h"

#include <cmath>

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

TEST_CASE("logits that are not finite make no token") {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const std::vector<float> logits = {1, bad, 3};
    for (const double temperature : {0.0, 1.0})
      CHECK_THROWS_AS(sample_token(logits.data(), 3, {.temperature = temperature}, 0.5), NumericsError);
  }
}
