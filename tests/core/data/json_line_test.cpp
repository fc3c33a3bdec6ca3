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
  CHECK(text_of(R"({"text": "\ud83d\ud83d\ude00\\ud83d"})") == "\ufffd\U0001F600\\ud83d");
}

TEST_CASE("bytes that are not UTF-8 are kept") {
  CHECK(text_of("{\"text\": \"\u00e9\xff\"}") == "\u00e9\xff");
  // DEL, raw or escaped, stays what it is, in front of such bytes and behind them.
  CHECK(text_of("{\"k\xfe\x7f\": \"\x7f\\u007f\", \"text\": \"\x7f\xffz\\u007F\xfe\", \"x\": \"\xfd\"}") ==
        "\x7f\xffz\x7f\xfe");
  CHECK(text_of("{\"te\xfft\": \"found\"}", "te\xfft") == "found");
}

TEST_CASE("lines that are not JSON objects are refused with the column") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "1: "},  // versions of the parser have different words
      {std::string("{\"text\": \"a\"}\0{\"text\": \"b\"}", 27), "14: a zero byte, which JSON cannot contain"},
      {"[1]", "1: an array begins here, expected a JSON object on each line: write one for each element"},
      {" [", "1: an array begins here"},
      {"[{\"text\": \"a\"},", "1: an array begins here"},
      {"3", "1: expected a JSON object '{...}'"},
      {"\"text\"", "1: expected a JSON object '{...}'"},
      {"{\"text\": \"a\"", "13: syntax error while parsing object - unexpected end of input; expected '}'"},
      {"{",
       "2: syntax error while parsing object key - unexpected end of input; expected string literal: the "
       "line ends within its object; one that goes on in the next is not JSON lines (jq -c . FILE "},
      {"{\"text\": \"a\"} x", "15: syntax error while parsing value - invalid literal"},
      {"{\"text\": \"a", "12: syntax error while parsing value - invalid string: missing closing quote"},
      {"{\"text\": \"a\tb\"}", "12: syntax error while parsing value - invalid string: control character"},
      {R"({"text": "\x"})", "12: syntax error while parsing value - invalid string: forbidden character"},
      {R"({"text": "\u12g4"})",
       "15: syntax error while parsing value - invalid string: '\\u' must be followed"},
      {R"({"text": "\ud)", "14: syntax error while parsing value - invalid string: '\\u' must be followed"},
      {R"({"text": "\)", "12: syntax error while parsing value - invalid string: forbidden character"},
      {"{\xff: 1}", "2: syntax error while parsing object key - invalid literal"},
      {R"({"text" 1})", "9: syntax error while parsing object separator - unexpected number"},
      {R"({"text": })", "10: syntax error while parsing value - unexpected '}'"},
      {R"({"a": 01})", "8: syntax error while parsing object - unexpected number literal; expected '}'"},
      {R"({"a": [1 2]})", "10: syntax error while parsing array - unexpected number literal; expected ']'"},
      {R"({"a": 1,})", "9: syntax error while parsing object key - unexpected '}'"},
      {R"({"a": 1e999})", "11: number overflow parsing '1e999'"},
      {R"({"a": "text"})",
       "14: the object has no key \"text\", only \"a\": set training.text_key (or text_key of the source or "
       "validation set, or --text-key of init, data, eval, generate and tokenizer) to the key that holds the "
       "text"},
      {R"({"messages": []})",
       "17: the object has no key \"text\", only \"messages\": if the lines are conversations, set "
       "training.format (or format of the source in training.mixture or of the set in validation.datasets, "
       "or --format of data inspect) to messages; tokenizer train, data prepare, eval --text and init read "
       "only plain texts"},
      {R"({"conversations": []})",
       "22: the object has no key \"text\", only \"conversations\": if the lines are conversations, set "
       "training.format (or format of the source in training.mixture or of the set in validation.datasets, "
       "or --format of data inspect) to sharegpt;"},
      {"{}", "3: the object is empty, expected the key \"text\""},
      {R"({"a":1,"b":{"z":1},"c":[{"y":1}],"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1})",
       "76: the object has no key \"text\", only \"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\" and "
       "2 more: set training.text_key (or text_key of the source or validation set, or --text-key of init, "
       "data, eval, generate and tokenizer) to the key that holds the text"},
      {R"({"text": null})", "15: the value of \"text\" is not a string"},
      {R"({"text": {"text": "inner"}})", "28: the value of \"text\" is not a string"},
      {R"({"text": ["text"]})", "19: the value of \"text\" is not a string"},
      {R"({"text": "first", "text": 1})", "29: the value of \"text\" is not a string"},
      {"{\"a\": " + std::string(100000, '['), "100007: syntax error while parsing value - unexpected end"}};
  for (const auto& [line, problem] : cases) {
    INFO(line.substr(0, 40));
    CHECK_THAT(problem_of(line), Catch::StartsWith(problem));
  }
  // What was read is not part of the message: it may be megabytes.
  CHECK(problem_of("{\"text\": \"" + std::string(100000, 'a')).size() < 200);
}
