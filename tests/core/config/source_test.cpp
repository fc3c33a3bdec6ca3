#include "core/config/source.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using ottava::test::message_of;
using namespace ottava::config;
namespace fs = std::filesystem;
using Kind = Value::Kind;

namespace {

std::string yaml_error(const std::string& text) {
  return message_of([&] { parse_yaml(text, "f.yaml"); });
}
std::string toml_error(const std::string& text) {
  return message_of([&] { parse_toml(text, "f.toml"); });
}

const Value& at(const Value& root, const std::string& section, const std::string& key) {
  const Value* table = root.find(section);
  REQUIRE(table);
  const Value* value = table->find(key);
  REQUIRE(value);
  return *value;
}

}  // namespace

TEST_CASE("YAML and TOML give the same tree", "[config]") {
  Value yaml = parse_yaml(
      "optimizer:\n  eps: 1.0e-08\n  lr: 0.5\n  name: AdamW\ntraining:\n  list: [a, '2']\n  on: true\n  "
      "steps: 10\n",
      "f.yaml");
  Value toml = parse_toml(
      "[optimizer]\neps = 1e-8\nlr = 0.5\nname = 'AdamW'\n[training]\nlist = ['a', '2']\non = true\nsteps = "
      "10\n",
      "f.toml");
  CHECK(same(yaml, toml));
}

TEST_CASE("values and keys know their line and column", "[config]") {
  Value yaml = parse_yaml("a:\n  key: value\n  list:\n    - 1\n    - {x: 2}\n", "f.yaml");
  CHECK(to_string(at(yaml, "a", "key").at) == "f.yaml:2:8");
  CHECK(to_string(at(yaml, "a", "list").items[0].at) == "f.yaml:4:7");
  CHECK(to_string(at(yaml, "a", "list").items[1].find("x")->at) == "f.yaml:5:11");
  CHECK(to_string(yaml.find("a")->members[0].at) == "f.yaml:2:3");
  Value toml = parse_toml("[a]\n  key = 'value'\n", "f.toml");
  CHECK(to_string(at(toml, "a", "key").at) == "f.toml:2:9");
  CHECK(to_string(toml.find("a")->members[0].at) == "f.toml:2:3");
}

TEST_CASE("quoted YAML is text, anchors and merges expand", "[config]") {
  Value v = parse_yaml(
      "a: &base {x: 1, y: '2'}\nb: *base\nc:\n  <<: *base\n  x: 3\nd:\n  <<: [*base, {z: 4}]\n", "f.yaml");
  CHECK(at(v, "a", "y").kind == Kind::text);
  CHECK(same(*v.find("a"), *v.find("b")));
  CHECK(at(v, "c", "x").integer == 3);
  CHECK(at(v, "c", "y").text == "2");
  CHECK(at(v, "d", "z").integer == 4);
  CHECK(at(v, "d", "x").integer == 1);
}

TEST_CASE("an empty file is an empty table", "[config]") {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n"})
    CHECK(parse_yaml(text, "f.yaml").kind == Kind::table);
  CHECK(parse_toml("", "f.toml").kind == Kind::table);
}

TEST_CASE("malformed YAML is one error with its place", "[config]") {
  CHECK(yaml_error("a: [1, 2\n") ==
        "[config] f.yaml:2:1: not valid YAML: a bracket opened here or above is never closed");
  const std::string tab = "not valid YAML: a tab indents this line; YAML takes spaces only";
  CHECK(yaml_error("a:\n\tb: 1\n") == "[config] f.yaml:2:3: " + tab);
  CHECK(yaml_error("a:\n  b: 1\n\tc: 2\n") == "[config] f.yaml:3:1: " + tab);
  CHECK(yaml_error("a:\n  b: 1\n c: 2\n") ==
        "[config] f.yaml:3:2: not valid YAML: this line is indented by 1 space, unlike the lines above; all "
        "keys of a section must begin in the same column");
  for (const char* text : {"a:\n  b: 1\n   c: 2\n", "a:\n  b 1\n  c: 2\n", "a: b: c\n"})
    CHECK(yaml_error(text).find(
              "not valid YAML: a key is not allowed here; this line may be indented too far") !=
          std::string::npos);
  CHECK(yaml_error("a:\n\tb: 1\n").find("[config] f.yaml:2:") == 0);
  CHECK(yaml_error("a: 1\na: 2\n") == "[config] f.yaml:2:1: the key 'a' is given twice, first at line 1");
  CHECK(yaml_error("[1]: 2\n") == "[config] f.yaml:1:1: a key must be a string");
  CHECK(yaml_error("{x: {{y: 1}: 2}}\n").find("a key must be a string") != std::string::npos);
  CHECK(yaml_error("~: 2\n") == "[config] f.yaml:1:1: a key must be a string");
  CHECK(yaml_error("- 1\n") == "[config] f.yaml: expected sections with keys, got a list");
  CHECK(yaml_error("hello\n") == "[config] f.yaml: expected sections with keys, got the string \"hello\"");
  CHECK(yaml_error("a: !!python/object x\n")
            .find("f.yaml:1:4: the YAML tag tag:yaml.org,2002:python/object is not supported") !=
        std::string::npos);
  const std::string toml = "[model] # small\nname = \"a\"\n";
  for (const std::string& text :
       {toml + "[training]\n", "# a run\n\n" + toml, "\xef\xbb\xbf" + toml, "\xef\xbb\xbf# a run\n" + toml,
        toml + "decay = \"a: b\"\n", toml + "note = 'it''\n", std::string("  [[param_groups]]\r\n")})
    CHECK(yaml_error(text) ==
          "[config] f.yaml: the file begins like TOML ('[section]'), but its name makes it YAML: name it "
          "FILE.toml");
  CHECK(yaml_error("a: 1\n---\nb: 2\n") == "[config] f.yaml: more than one YAML document ('---')");
  CHECK(yaml_error("a: *b\n").find("f.yaml:1:") != std::string::npos);
  CHECK(yaml_error("a: &x [*x]\n") == "[config] f.yaml:1:8: an alias refers to a value that contains it");
  CHECK(yaml_error("a:\n  <<: 3\n") == "[config] f.yaml:2:3: '<<' merges tables, got the integer 3");
  CHECK(yaml_error(std::string("a: \0b", 5)) ==
        "[config] f.yaml contains a zero byte, so it is not a text file");
}

TEST_CASE("a quote that is never closed is refused, whatever the keys behind it", "[config]") {
  for (const char quote : {'"', '\''}) {
    const std::string open = fmt::format("a: 1\nb:\n  c: {}text", quote);
    const std::string here = "[config] f.yaml:3:6: not valid YAML: the quote opened here is never closed";
    for (const char* behind : {"\n", "\n\n", "\nd:\n  e: 2\n", " # comment\r\nd: 2\r\n", "\n  "})
      CHECK(yaml_error(open + behind) == here);
    const std::string above = "not valid YAML: a quote opened here or above is never closed";
    CHECK_THAT(yaml_error(open), Catch::Contains(above));
    CHECK_THAT(yaml_error(fmt::format("a: {{b: {}text}}\n", quote)), Catch::Contains(above));
    CHECK(parse_yaml(open + "\n  more" + quote + "\n# it's\n", "f.yaml").kind == Kind::table);
  }
  for (const char* text : {"a: it's\n", "a: |\n  it's \"so\n", "a: >+\n  it's\n\n", "a: 5\" # it's\n"})
    CHECK(parse_yaml(text, "f.yaml").kind == Kind::table);
}

TEST_CASE("hostile YAML is refused, not expanded", "[config]") {
  std::string brackets = std::string(5000, '[') + std::string(5000, ']');
  CHECK(yaml_error("a: " + brackets).find("f.yaml:1:") != std::string::npos);
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += std::string(static_cast<size_t>(i), ' ') + "k:\n";
  CHECK(yaml_error(nested + std::string(40, ' ') + "k: 1\n") ==
        "[config] f.yaml:33:33: nested more than 32 levels deep");
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  }
  CHECK(yaml_error(bomb).find("more than 100000 values, aliases expanded") != std::string::npos);
  std::string texts = fmt::format("a: &a {:x<500000}\nb: [*a", "");
  for (int i = 0; i < 1000; ++i) texts += ", *a";
  CHECK(yaml_error(texts + "]\n").find("more than 100000 values") != std::string::npos);
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 100; ++i) {
    deep += fmt::format("a{}: &a{} [*a{}]\n", i, i, i - 1);
  }
  CHECK(yaml_error(deep).find("nested more than 32 levels deep") != std::string::npos);
  CHECK(yaml_error(std::string(kMaxBytes + 1, '#')).find("bytes, but a configuration has at most 1048576") !=
        std::string::npos);
}

TEST_CASE("malformed TOML is one error with its place", "[config]") {
  CHECK(toml_error("a = \n").find("[config] f.toml:1:") == 0);
  CHECK(toml_error("a = 1\na = 2\n").find("[config] f.toml:2:") == 0);
  CHECK(toml_error("a = 1979-05-27\n") ==
        "[config] f.toml:1:5: a date or time is not a valid value of any key; write a string in quotes");
  std::string nested = "a = ";
  nested.append(100, '[').append(100, ']');
  CHECK(toml_error(nested).find("nested more than 32 levels deep") != std::string::npos);
  nested.insert(4, 100'000, '[');
  CHECK(toml_error(nested).find("f.toml:1:") != std::string::npos);
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += i % 2 == 0 ? ".a" : " . \"=\"";
  const std::string in_table = "t = {s = \"\"\".\"\"\"\"\", " + dotted + " = 1}\n";
  for (const std::string& key : {dotted + " = 1\n", "[" + dotted + "]\n", in_table})
    CHECK_THAT(toml_error("x = 1\n" + key),
               Catch::Contains("f.toml:2:") && Catch::Contains("nested more than 32 levels deep"));
  CHECK(toml_error(std::string(kMaxBytes + 1, '#')).find("bytes, but a configuration has at most 1048576") !=
        std::string::npos);
}

TEST_CASE("dots of strings, numbers and comments nest nothing", "[config]") {
  const std::string dots(100, '.');
  const Value v = parse_toml(fmt::format("# {0}\na = \"{0}\\\"{0}\"\nb = '''\n\"{0}'''\nc = [{1}]\n", dots,
                                         fmt::join(std::vector(100, 0.5), ", ")),
                             "f.toml");
  CHECK(v.find("a")->text == dots + '"' + dots);
  CHECK(v.find("c")->items.size() == 100);
}

TEST_CASE("keys of TOML are in the order of the file", "[config]") {
  const Value v = parse_toml("[b]\ny = 1\nx = 2\n[a]\n", "f.toml");
  CHECK(v.members[0].key == "b");
  CHECK(v.members[0].value.members[0].key == "y");
  CHECK(v.members[1].key == "a");
}

TEST_CASE("files are read by their extension, and what cannot be read is said", "[config]") {
  const TemporaryFolder own;
  const fs::path folder = own.path();
  fs::create_directories(folder / "folder.yaml");
  auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return folder / name;
  };
  CHECK(read_file(write("a.yaml", "x: {y: 1}")).find("x"));
  CHECK(read_file(write("a.yml", "x: {y: 1}")).find("x"));
  CHECK(read_file(write("a.toml", "[x]\ny = 1")).find("x"));
  auto error = [](const fs::path& path) { return message_of([&] { read_file(path); }); };
  CHECK(error(folder / "a.json").find("the file name ends in '.json', expected .yaml, .yml or .toml") !=
        std::string::npos);
  CHECK(error(folder / "none.yaml").find("does not exist (current directory: ") != std::string::npos);
  CHECK(error(folder / "folder.yaml").find("is a folder, expected a file: .yaml, .yml or .toml") !=
        std::string::npos);
  CHECK(error(write("big.yaml", std::string(kMaxBytes + 1, '#'))).find("is it another kind of file?") !=
        std::string::npos);
}
