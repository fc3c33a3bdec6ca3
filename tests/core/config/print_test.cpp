#include "core/config/print.h"

#include <nlohmann/json.hpp>

#include "tests/core/config/sample.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::config;
using namespace ottava::test;

TEST_CASE("what is printed reads back the same, whatever the text", "[config]") {
  for (const std::string& text :
       Lines{"plain",       "",        " ",        "true", "null", "1",  "1e3",        "a: b",
             "a #b",        "#",       "- x",      "[x]",  "{x}",  "'",  "\"quoted\"", "back\\slash",
             "line\nbreak", "tab\t",   "\x01\x7f", "*a",   "&a",   "!t", "%d",         "@x",
             "`",           "ünïcödé", "a,b",      "x ",   " x",   ".",  "..",         "-",
             "yes",         "~",       "?",        "|",    ">"}) {
    Sample sample;
    sample.name = text;
    sample.maybe_name = text;
    sample.rate = 0.1;
    sample.mode = Sample::Mode::three;
    sample.rules = {{text, "b", {}}, {"m", "a", 1e-9}};
    Section root;
    root.section("outer").section("inner", sample);
    for (bool comments : {false, true}) {
      std::string printed = to_yaml(root, {comments});
      INFO(printed);
      Result again = read(printed);
      CHECK(again.problems.empty());
      CHECK(again.notes.empty());
      CHECK((again.sample == sample));
    }
  }
}

TEST_CASE("schema and fates cover every key", "[config]") {
  Sample sample;
  Section root;
  root.section("outer").section("inner", sample);
  auto schema = nlohmann::json::parse(to_json_schema(root, "sample"));
  auto properties = schema["properties"]["outer"]["properties"]["inner"]["properties"];
  for (const Field& f : find_section(root, "outer.inner")->fields()) CHECK(properties.contains(f.name));
  CHECK(properties["count"] ==
        nlohmann::json::parse(R"({"type": ["integer", "null"], "description": "a count [steps]", "default": 3,
                                  "minimum": 1.0, "maximum": 100.0})"));
  CHECK(properties["rate"]["exclusiveMinimum"] == 0);
  CHECK(properties["all"]["anyOf"] ==
        nlohmann::json::parse(R"([{"minimum": 2.0, "maximum": 100.0}, {"const": -1.0}])"));
  CHECK(properties["mode"]["enum"] == nlohmann::json::parse(R"(["on", "off", "3", 3, null])"));
  CHECK(properties["rules"]["items"]["required"] == nlohmann::json::parse(R"(["match"])"));
  CHECK(properties["danger"]["description"] == "Only the default is supported: it changes results");
  CHECK(properties["old_switch"]["description"] == "Ignored: there is no switch");
  CHECK(properties["counter"]["description"] == "Now called outer.inner.count");

  std::vector<KeyFate> rows = fates(root);
  auto row = [&](const std::string& path) {
    for (const KeyFate& r : rows) {
      if (r.path == path) return r;
    }
    return KeyFate{};
  };
  CHECK(row("outer.inner.count").fate == "used");
  CHECK(row("outer.inner.count").fallback == "3");
  CHECK(row("outer.inner.count").type == "an integer >= 1 and <= 100");
  CHECK(row("outer.inner.count").text == "a count [steps]");
  CHECK(row("outer.inner.mode").type.starts_with("on, off"));
  CHECK(row("outer.inner.old_switch").fate == "noted");
  CHECK(row("outer.inner.danger").fate == "refused");
  CHECK(row("outer.inner.counter").text == "outer.inner.count");
}
