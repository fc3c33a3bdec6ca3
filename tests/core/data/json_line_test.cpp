#include "core/data/json_line.h"

#include "tests/core/data/fixture.h"

using namespace ottava::data;
using namespace ottava::data::test;

namespace {

std::string text_of(std::string_view line, std::string_view key = "text") {
  std::string out = "before ";
  auto problem = append_json_string(line, key, out);
  if (problem) FAIL(problem->what);
  REQUIRE(out.starts_with("before "));
  return out.substr(7);
}

std::string problem_of(std::string_view line) {
  std::string out = "kept";
  auto problem = append_json_string(line, "text", out);
  REQUIRE(problem);
  CHECK(out == "kept");
  return fmt::format("{}: {}", problem->column, problem->what);
}

}  // namespace

TEST_CASE("the string under a key, wherever it stands") {
  CHECK(text_of(R"({"text": "abc"})") == "abc");
  CHECK(text_of("  {\"text\":\"\"}\r") == "");
  CHECK(
      text_of(
          R"({"id": -1.5e+3, "a": [1, [], {"text": "inner"}], "b": {"text": 1}, "text": "outer", "z": [true, false, null]})") ==
      "outer");
  CHECK(text_of(R"({"text": "first", "text": "last"})") == "last");
  CHECK(text_of(R"({"te\u0078t": "escaped key"})") == "escaped key");
  CHECK(text_of(R"({"content": "c", "text": 3})", "content") == "c");
}

TEST_CASE("escapes become UTF-8") {
  CHECK(text_of(R"({"text": "\" \\ \/ \b \f \n \r \t"})") == "\" \\ / \b \f \n \r \t");
  CHECK(text_of(R"({"text": "\u0041\u00e9\u20ac\ud83d\ude00\u0000|"})") ==
        std::string("A\u00e9\u20ac\U0001F600\0|", 12));
  // Half a surrogate pair is no character.
  CHECK(text_of(R"({"text": "a\ud83dz"})") == "a\ufffdz");
  CHECK(text_of(R"({"text": "a\ude00\u0041"})") == "a\ufffdA");
  CHECK(text_of(R"({"text": "\ud83d\u0041"})") == "\ufffdA");
  CHECK(text_of("{\"text\": \"\u00e9\xff\"}") == "\u00e9\xff");
}

TEST_CASE("lines that are not JSON objects are refused with the column") {
  CHECK(problem_of("") == "1: expected a JSON object '{...}'");
  CHECK(problem_of("[1]") == "1: expected a JSON object '{...}'");
  CHECK(problem_of("{\"text\": \"a\"") == "13: expected ',' or '}' in an object");
  CHECK(problem_of("{\"text\": \"a\"} x") == "15: unexpected text after the object");
  CHECK(problem_of("{\"text\": \"a") == "12: the line ends inside a string");
  CHECK(problem_of("{\"text\": \"a\tb\"}") ==
        "12: control character in a string; expected an escape such as \\n");
  CHECK(problem_of(R"({"text": "\x"})") == "12: unknown escape in a string");
  CHECK(problem_of(R"({"text": "\u12g4"})") == "15: expected four hexadecimal digits after \\u");
  CHECK(problem_of(R"({"text": "\)") == "12: unknown escape in a string");
  CHECK(problem_of(R"({text: 1})") == "2: expected a key in double quotes");
  CHECK(problem_of(R"({"text" 1})") == "9: expected ':' after a key");
  CHECK(problem_of(R"({"text": })") == "10: expected a value");
  CHECK(problem_of(R"({"a": -})") == "8: expected digits");
  CHECK(problem_of(R"({"a": 1.})") == "9: expected digits after '.'");
  CHECK(problem_of(R"({"a": 1e})") == "9: expected digits in the exponent");
  CHECK(problem_of(R"({"a": 01})") == "8: expected ',' or '}' in an object");
  CHECK(problem_of(R"({"a": [1 2]})") == "10: expected ',' or ']' in an array");
  CHECK(problem_of(R"({"a": nul})") == "7: expected a value");
  CHECK(problem_of(R"({"a": 1,})") == "9: expected a key in double quotes");
  CHECK(problem_of(R"({"a": "text"})") == "14: the object has no key \"text\"");
  CHECK(problem_of(R"({"text": null})") == "15: the value of \"text\" is not a string");
  CHECK(problem_of("{\"a\": " + std::string(100000, '[')) == "263: values are nested more than 256 deep");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  CHECK(has(problem_of(objects), "nested more than 256 deep"));
}
