#include "core/io/json.h"

#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace ottava {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("JSON: what is written reads back the same") {
  Json value;
  value.set("a", 1)
      .set("b", 0.1)
      .set("c", "x\"\\\n\t\x01é")
      .set("d", Json(Json::Array{1, true, Json(), 2.0}));
  value.set("e", Json(Json::Object{}));
  for (int indent : {0, 2}) {
    Json back = Json::parse(value.dump(indent), "test");
    CHECK(back.dump() == value.dump());
    CHECK(back.at("a", "test").is_integer());
    CHECK(back.at("c", "test").as_string("test") == "x\"\\\n\t\x01é");
    CHECK_FALSE(back.at("d", "test").as_array("test")[3].is_integer());
  }
  CHECK(value.dump() == R"({"a":1,"b":0.1,"c":"x\"\\\n\t\u0001é","d":[1,true,null,2.0],"e":{}})");
  CHECK(Json().set("a", 1).dump(2) == "{\n  \"a\": 1\n}");
  Json records(Json::Array{Json().set("x", 1), Json().set("x", 2)});
  CHECK(Json().set("r", records).dump(2) == "{\n  \"r\": [\n    {\"x\":1},\n    {\"x\":2}\n  ]\n}");
}

TEST_CASE("JSON: doubles keep every bit; what is not finite becomes null") {
  for (double x : {0.1, 1.0 / 3, 1e300, 5e-324, -0.0, 123456789.123456789, 1e22, 500000.0}) {
    std::string text;
    append_json_number(text, x);
    double back = Json::parse(text, "test").as_number("test");
    CHECK(std::bit_cast<uint64_t>(back) == std::bit_cast<uint64_t>(x));
    CHECK_FALSE(Json::parse(text, "test").is_integer());
  }
  CHECK(Json(std::nan("")).dump() == "null");
  CHECK(Json(std::numeric_limits<double>::infinity()).dump() == "null");
}

TEST_CASE("JSON: malformed text is refused") {
  auto parse = [](std::string_view text) { return Json::parse(text, "f.json"); };
  CHECK_THROWS_WITH(parse("{"), Contains("[f.json] malformed JSON near byte"));
  CHECK_THROWS_WITH(parse("{} x"), Contains("malformed"));
  CHECK_THROWS_WITH(parse(""), Contains("malformed"));
  CHECK_THROWS_WITH(parse(R"({"a":1,"a":2})"), Contains("'a' appears twice"));
  const Json beyond = parse("18446744073709551615");
  CHECK(beyond.as_number("x") == 0x1p64);
  CHECK_THROWS_WITH(beyond.as_integer("f.json: a"), Contains("is a number, expected an integer"));
  CHECK_THROWS_WITH(parse(std::string_view("{}\0{}", 5)),
                    Contains("malformed JSON near byte 3: a zero byte"));
  CHECK_THROWS_WITH(parse("\"\xff\""), Contains("malformed"));
  CHECK_THROWS_WITH(parse("version https://git-lfs.github.com/spec/v1\noid sha256:79c9f3\nsize 9085698\n"),
                    "[f.json] this is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`");
  // The library would quote all that it has read of the string.
  const std::string message = test::message_of([&] { parse("\"" + std::string(1 << 20, 'a') + "\xff\""); });
  CHECK_THAT(message, Contains("malformed JSON near byte 1048578"));
  CHECK(message.size() < 200);
  CHECK_THROWS_WITH(parse(std::string(65, '[') + std::string(65, ']')), Contains("more than 64 levels"));
  CHECK(parse(std::string(64, '[') + std::string(64, ']')).is_array());
}

TEST_CASE("JSON: the wrong kind is named") {
  Json value = Json::parse(R"({"a": "x"})", "f.json");
  CHECK_THROWS_WITH(value.at("b", "f.json"), Contains("[f.json] has no 'b'"));
  CHECK_THROWS_WITH(value.at("a", "f.json").as_integer("f.json: a"),
                    Contains("is a string, expected an integer"));
  CHECK_THROWS_WITH(value.as_array("f.json"), Contains("is an object, expected an array"));
  CHECK_THROWS_WITH(Json(1).as_bool("x"), Contains("is an integer, expected true or false"));
  CHECK_THROWS_WITH(Json(true).as_number("x"), Contains("is a boolean, expected a number"));
  CHECK_THROWS_WITH(Json(1).as_string("x"), Contains("expected a string"));
  CHECK_THROWS_WITH(Json(1).at("a", "x"), Contains("expected an object"));
  CHECK(value.find("b") == nullptr);
  CHECK(Json(1).find("b") == nullptr);
}

TEST_CASE("bytes that are not UTF-8 are written as U+FFFD") {
  std::string text;
  append_json_string(text,
                     "a\xff"
                     "b");
  CHECK(text ==
        "\"a\xef\xbf\xbd"
        "b\"");
}

}  // namespace
}  // namespace ottava
