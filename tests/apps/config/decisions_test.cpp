#include "apps/config/decisions.h"

#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;

TEST_CASE("decisions are read as they were written") {
  const Decisions decisions{.made_for = "two ranks",
                            .entries = {{"a.b", "true", "it \"fits\""}, {"c", "0.5", ""}}};
  CHECK(parse_decisions(to_json(decisions), "here") == decisions);
  CHECK(parse_decisions(to_json(Decisions{}), "here") == Decisions{});
  REQUIRE(decisions.find("c"));
  CHECK(decisions.find("c")->value == "0.5");
  CHECK(decisions.find("d") == nullptr);
}

TEST_CASE("decisions are the same when what they say is, whatever the reason") {
  const Decisions decisions{.made_for = "two ranks", .entries = {{"a", "true", "x"}}};
  Decisions other = decisions;
  other.entries[0].reason += "y";
  CHECK(other.hash() == decisions.hash());
  other.entries[0].value = "false";
  CHECK(other.hash() != decisions.hash());
  other = decisions;
  other.made_for = "three ranks";
  CHECK(other.hash() != decisions.hash());
}

TEST_CASE("decisions of another form are refused") {
  CHECK_THROWS_WITH(parse_decisions("{}", "d.json"), Contains("d.json") && Contains("made_for"));
  CHECK_THROWS_WITH(parse_decisions(R"({"made_for": "x"})", "d.json"), Contains("entries"));
  CHECK_THROWS_WITH(
      parse_decisions(R"({"made_for": "x", "entries": [{"name": "a", "value": 1, "reason": ""}]})", "d.json"),
      Contains("value"));
}
