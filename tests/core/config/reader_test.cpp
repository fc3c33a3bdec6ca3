#include "core/config/reader.h"

#include <nlohmann/json.hpp>

#include "core/config/print.h"
#include "core/config/source.h"
#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::config;

namespace {

struct Rule {
  std::string match, to = "a";
  std::optional<double> factor;
  bool operator==(const Rule&) const = default;
};

struct Sample {
  enum class Mode { on, off, three };
  bool flag = false;
  int64_t count = 3;
  double rate = 0.5;
  std::string name = "x";
  std::optional<int64_t> maybe;
  std::optional<bool> maybe_flag;
  std::optional<std::string> maybe_name;
  std::vector<std::string> names;
  Mode mode = Mode::on;
  std::vector<Rule> rules;
  int64_t all = -1;
  std::optional<Mode> maybe_mode;
  bool operator==(const Sample&) const = default;
};

void declare(Section& s, Rule& c) {
  s.field("match", c.match, "what it is for").required();
  s.field("to", c.to, "where").one_of({"a", "b"});
  s.field("factor", c.factor, "").above(0);
}

void declare(Section& s, Sample& c) {
  s.meaning("a section");
  s.field("flag", c.flag, "a flag");
  s.field("count", c.count, "a count").range(1, 100).unit("steps");
  s.field("rate", c.rate, "").range(0, 1).above(0);
  s.field("name", c.name, "");
  s.field("maybe", c.maybe, "").at_least(0);
  s.field("all", c.all, "").range(2, 100).or_value(-1);
  s.field("maybe_flag", c.maybe_flag, "");
  s.field("maybe_name", c.maybe_name, "");
  s.field("names", c.names, "")
      .one_of({"a", "b", "c"})
      .rename_value("aa", "a")
      .refuse_value("z", "z is last");
  using Mode = Sample::Mode;
  s.choice("mode", c.mode, {{"on", Mode::on}, {"off", Mode::off}, {"3", Mode::three}}, "")
      .refuse_value("maybe", "be clear");
  s.choice("maybe_mode", c.maybe_mode, {{"on", Mode::on}, {"off", Mode::off}}, "");
  s.list("rules", c.rules, "");
  s.foreign("old_switch", Value::of(false)).noted("there is no switch");
  s.foreign("old_depth", Value::of(int64_t{1})).noted("there is no switch");
  s.foreign("danger", Value::of(int64_t{1})).refused("it changes results");
  s.foreign("path", Type::text).refused("there is no path");
  s.renamed("counter", "outer.inner.count");
}

/// Everything that reading gives.
struct Result {
  Sample sample;
  std::vector<std::string> problems, notes;
};

Result read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  Result r;
  Section root;
  root.section("outer").section("inner", r.sample);
  root.renamed("old_section", "outer.inner");
  Problems problems;
  Reader reader(root, problems);
  reader.read(parse_yaml(yaml, "f"));
  reader.read_overrides(overrides);
  r.notes = reader.finish();
  r.problems = problems.lines();
  return r;
}
Result inner(const std::string& body, const std::vector<std::string>& overrides = {}) {
  return read("outer: {inner: {" + body + "}}", overrides);
}
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("every type is read", "[config]") {
  Result r = inner(
      "flag: true, count: 7, rate: 1e-4, name: y, maybe: 5, maybe_flag: false, maybe_name: n, names: [a, b], "
      "mode: off, "
      "rules: [{match: m, to: b, factor: 2}]");
  CHECK(r.problems.empty());
  CHECK(r.notes.empty());
  Sample expected{true, 7, 1e-4, "y", 5, false, "n", {"a", "b"}, Sample::Mode::off, {{"m", "b", 2.0}}};
  CHECK(r.sample == expected);
  CHECK(inner("names: a").sample.names == Lines{"a"});         // a list of one needs no brackets
  CHECK(inner("mode: 3").sample.mode == Sample::Mode::three);  // a choice that YAML reads as a number
  CHECK(inner("").sample.maybe_mode == std::nullopt);
  CHECK(inner("maybe_mode: off").sample.maybe_mode == Sample::Mode::off);
}

TEST_CASE("null gives a key its default", "[config]") {
  Result r = inner("count: null, rate: ~, maybe: null, names: null", {"--outer.inner.count", "9"});
  CHECK(r.problems.empty());
  CHECK(r.sample.count == 9);
  CHECK(r.sample.rate == 0.5);
  CHECK(inner("count: 9", {"--outer.inner.count", "null"}).sample.count == 3);
  CHECK(inner("maybe: 9", {"--outer.inner.maybe=null"}).sample.maybe == std::nullopt);
  CHECK(inner("rules: [{match: m}]", {"--outer.inner.rules=[]"}).sample.rules.empty());
  // Whatever the key takes, also where a file could name a text so.
  CHECK(inner("name: y", {"--outer.inner.name", "null"}).sample.name == "x");
  CHECK(inner("name: y", {"--outer.inner.name=Null"}).sample.name == "Null");
  CHECK(inner("name: 'null'").sample.name == "null");
  CHECK(inner("mode: off", {"--outer.inner.mode", "null"}).sample.mode == Sample::Mode::on);
  CHECK(inner("maybe_mode: off", {"--outer.inner.maybe_mode", "null"}).sample.maybe_mode == std::nullopt);
  CHECK(inner("names: [a]", {"--outer.inner.names", "null"}).sample.names.empty());
  CHECK(inner("rules: [{match: m}]", {"--outer.inner.rules", "null"}).sample.rules.empty());
  CHECK(inner("", {"--outer.inner.path", "null"}).problems.empty());
  CHECK(read("outer:\n  inner:\n").problems.empty());
}

TEST_CASE("wrong types say what was expected and got", "[config]") {
  auto problem = [](const std::string& body) {
    Result r = inner(body);
    REQUIRE(r.problems.size() == 1);
    return r.problems[0];
  };
  CHECK(problem("flag: yes") == "f:1:23: outer.inner.flag: expected true or false, got the string \"yes\"");
  CHECK(problem("flag: 1") == "f:1:23: outer.inner.flag: expected true or false, got the integer 1");
  CHECK(problem("count: 7.0") ==
        "f:1:24: outer.inner.count: expected an integer >= 1 and <= 100, got the number 7.0");
  CHECK(problem("count: '7'") ==
        "f:1:24: outer.inner.count: expected an integer >= 1 and <= 100, got the string \"7\"");
  CHECK(problem("count: 0") ==
        "f:1:24: outer.inner.count: expected an integer >= 1 and <= 100, got the integer 0");
  CHECK(problem("count: 101").find("got the integer 101") != std::string::npos);
  CHECK(problem("count: 99999999999999999999").find("got the number 99999999999999999999") !=
        std::string::npos);
  CHECK(problem("maybe: 9223372036854775808") ==
        "f:1:24: outer.inner.maybe: expected an integer >= 0, got the number 9223372036854775808, which 64 "
        "bits cannot hold");
  CHECK(problem("rate: 1e309") ==
        "f:1:23: outer.inner.rate: expected a number > 0 and <= 1, got the number "
        "1e309, which is not a finite float64");
  CHECK(problem("rate: 0") == "f:1:23: outer.inner.rate: expected a number > 0 and <= 1, got the integer 0");
  CHECK(problem("rate: 1.5").find("expected a number > 0 and <= 1, got the number 1.5") != std::string::npos);
  CHECK(problem("rate: .nan").find("got the number .nan") != std::string::npos);
  CHECK(problem("name: 5") ==
        "f:1:23: outer.inner.name: expected a string, got the integer 5; write it in quotes");
  CHECK(problem("name: [a]").find("expected a string, got a list") != std::string::npos);
  CHECK(problem("maybe: -1").find("expected an integer >= 0, got the integer -1") != std::string::npos);
  CHECK(problem("maybe_flag: 0").find("expected true or false") != std::string::npos);
  CHECK(problem("names: [a, bb]").find("expected a list of a, b or c, got the string \"bb\"") !=
        std::string::npos);
  CHECK(problem("names: \"a, b\"") ==
        "f:1:24: outer.inner.names: expected a list of a, b or c, got the string \"a, b\"; write a list: "
        "[\"a\", \"b\"]");
  CHECK(problem("names: {a: 1}").find("got a table of keys") != std::string::npos);
  CHECK(problem("names: [a, 3]") ==
        "f:1:28: outer.inner.names: expected a list of a, b or c, got the integer 3");
  CHECK(problem("mode: offf") ==
        "f:1:23: outer.inner.mode: expected on, off or 3, got the string \"offf\"; did you mean off?");
  CHECK(problem("mode: [on]").find("expected on, off or 3, got a list") != std::string::npos);
  CHECK(problem("rules: 3").find("outer.inner.rules: expected a list of tables, got the integer 3") !=
        std::string::npos);
  CHECK(problem("rules: [3]")
            .find("outer.inner.rules[0]: expected a table of keys {match: ...}, got the integer 3") !=
        std::string::npos);
  CHECK(problem("rules: [{to: a}]").find("outer.inner.rules[0].match is missing: what it is for") !=
        std::string::npos);
  CHECK(problem("rules: [{match: m, to: c}]")
            .find("outer.inner.rules[0].to: expected a or b, got the string \"c\"") != std::string::npos);
  CHECK(read("outer: 3").problems == Lines{"f:1:8: outer: expected a section with keys, got the integer 3"});
}

TEST_CASE("unknown keys come with the nearest valid one", "[config]") {
  CHECK(inner("conut: 3").problems ==
        Lines{"f:1:17: unknown key outer.inner.conut; did you mean outer.inner.count?"});
  CHECK(read("count: 3").problems == Lines{"f:1:1: unknown key count; did you mean outer.inner.count?"});
  CHECK(read("outer: {innner: {}}").problems ==
        Lines{"f:1:9: unknown key outer.innner; did you mean outer.inner?"});
  CHECK(read("outer: {xyz: 1}").problems == Lines{"f:1:9: unknown key outer.xyz; outer takes inner"});
  CHECK(read("outer.inner.count: 1").problems ==
        Lines{"f:1:1: unknown key 'outer.inner.count': the keys of a section are nested in it, as in {outer: "
              "{inner: {count: ...}}}"});
  CHECK(
      read("outer: {inner.count: 1}").problems ==
      Lines{"f:1:9: unknown key 'inner.count': the keys of a section are nested in it, as in {inner: {count: "
            "...}}"});
  CHECK(read("zzz: 1").problems == Lines{"f:1:1: unknown key zzz; a file takes outer"});
  CHECK(inner("rules: [{match: m, tto: a}]").problems ==
        Lines{"f:1:36: unknown key outer.inner.rules[0].tto; did you mean outer.inner.rules[0].to?"});
  CHECK(inner(std::string(900, 'k') + ": 1").problems[0].size() < 400);
}

TEST_CASE("all problems are reported at once, in the file's order", "[config]") {
  Result r = read("outer:\n  inner:\n    flag: 3\n    cuont: 1\n    count: 0\nother: 1\n",
                  {"--outer.inner.rate", "2"});
  REQUIRE(r.problems.size() == 5);
  CHECK(r.problems[0].find("f:3:11: ") == 0);
  CHECK(r.problems[1].find("f:4:5: ") == 0);
  CHECK(r.problems[2].find("f:5:12: ") == 0);
  CHECK(r.problems[3].find("f:6:1: ") == 0);
  CHECK(r.problems[4] == "command line: outer.inner.rate: expected a number > 0 and <= 1, got the integer 2");

  Problems two;
  two.add("a.b", "1 is not 2");
  two.add(Location{std::make_shared<const std::string>("f"), 4, 2}, "bad");
  try {
    two.throw_if_any("f.yaml");
    FAIL("must throw");
  } catch (const ConfigError& e) {
    CHECK(std::string(e.what()) ==
          "[config] 2 problems in f.yaml:\n  f:4:2: bad\n  default: a.b: 1 is not 2");
  }
  Problems{}.throw_if_any("nothing");
}

TEST_CASE("what reading a value throws is a problem of its key, without the place that threw", "[config]") {
  Problems problems;
  problems.add("a.b", ConfigError("schedule", "'x' is none of [1, 2] that there are"));
  CHECK(problems.lines() == std::vector<std::string>{"default: a.b: 'x' is none of [1, 2] that there are"});
}

TEST_CASE("overrides win over the file, the last over earlier ones", "[config]") {
  CHECK(inner("count: 5", {"--outer.inner.count", "6"}).sample.count == 6);
  CHECK(inner("count: 5", {"--outer.inner.count=6", "--outer.inner.count=7"}).sample.count == 7);
  CHECK(inner("", {"--outer.inner.maybe-flag"}).sample.maybe_flag == true);
  CHECK(inner("", {"--outer.inner.flag"}).sample.flag);
  CHECK(inner("flag: true", {"--outer.inner.no_flag"}).sample.flag == false);
  CHECK(inner("flag: true", {"--outer.inner.no-flag"}).sample.flag == false);
  CHECK(inner("flag: true", {"--outer.inner.flag", "false"}).sample.flag == false);
  CHECK(inner("flag: true", {"--outer.inner.flag=false"}).sample.flag == false);
  for (const char* value : {"False", "FALSE", "null"}) {
    const Result spelled = inner("flag: true", {"--outer.inner.flag", value});
    CHECK(spelled.problems.empty());
    CHECK(spelled.sample.flag == false);
  }
  CHECK(inner("maybe_flag: true", {"--outer.inner.maybe_flag", "null"}).sample.maybe_flag == std::nullopt);
  CHECK(inner("", {"--outer.inner.flag", "--outer.inner.count", "8"}).sample.count == 8);
  CHECK(inner("", {"--outer.inner.rate", "1e-3"}).sample.rate == 1e-3);
  CHECK(inner("", {"--outer.inner.name", "5"}).sample.name == "5");
  CHECK(inner("", {"--outer.inner.name=a=b"}).sample.name == "a=b");
  CHECK(inner("", {"--outer.inner.name", "-x"}).sample.name == "-x");
  CHECK(inner("", {"--outer.inner.names", "a,b"}).sample.names == Lines{"a", "b"});
  CHECK(inner("", {"--outer.inner.names", "[a, 'b']"}).sample.names == Lines{"a", "b"});
  CHECK(inner("names: [a]", {"--outer.inner.names="}).sample.names.empty());
  CHECK(inner("", {"--outer.inner.mode", "3"}).sample.mode == Sample::Mode::three);
  Result rules = inner("rules: [{match: p}, {match: q}]", {"--outer.inner.rules", "[{match: m, factor: 2}]"});
  CHECK(rules.sample.rules == std::vector<Rule>{{"m", "a", 2.0}});
}

TEST_CASE("what is wrong on the command line is said", "[config]") {
  auto problem = [](const Lines& arguments) {
    Result r = inner("", arguments);
    REQUIRE(r.problems.size() == 1);
    return r.problems[0];
  };
  CHECK(problem({"--outer.inner.conut", "3"}) ==
        "command line: unknown option --outer.inner.conut; did you mean --outer.inner.count?");
  CHECK(problem({"--count", "3"}) ==
        "command line: unknown option --count; did you mean --outer.inner.count?");
  CHECK(problem({"--outer.inner", "3"}).find("unknown option --outer.inner") != std::string::npos);
  CHECK(problem({"--zzz"}) == "command line: unknown option --zzz");
  CHECK(problem({"--outer.inner.con-ut", "3"}) ==
        "command line: unknown option --outer.inner.con-ut; did you mean --outer.inner.count?");
  CHECK(problem({"--no-outer.inner.flag"}) ==
        "command line: unknown option --no-outer.inner.flag; did you mean --outer.inner.no_flag?");
  CHECK(problem({"--outer.inner.no_count"}).find("unknown option") != std::string::npos);
  CHECK(problem({"stray"}) == "command line: expected --section.key value, got 'stray'");
  CHECK(problem({"a.yaml"}) ==
        "command line: expected --section.key value, got 'a.yaml'; give the configuration file first, before "
        "all options");
  CHECK(problem({"--"}) == "command line: expected --section.key value, got '--'");
  CHECK(problem({"--outer.inner.count"}) ==
        "command line: --outer.inner.count needs a value: an integer >= 1 and <= 100");
  CHECK(problem({"--outer.inner.count", "--outer.inner.flag"}) ==
        "command line: --outer.inner.count needs a value: an integer >= 1 and <= 100");
  CHECK(problem({"--outer.inner.count", "x"}) ==
        "command line: outer.inner.count: expected an integer >= 1 and <= 100, got the string \"x\"");
  // A shell's variable that is unset. A default in place of the file's value is not what was asked for.
  for (const auto& [key, expected] :
       std::vector<std::pair<std::string, std::string>>{{"flag", "true or false"},
                                                        {"count", "an integer >= 1 and <= 100"},
                                                        {"rate", "a number > 0 and <= 1"}}) {
    const std::string nothing = "command line: outer.inner." + key + ": expected " + expected +
                                ", got nothing; write null for the default";
    CHECK(problem({"--outer.inner." + key + "="}) == nothing);
    CHECK(problem({"--outer.inner." + key, ""}) == nothing);
  }
  CHECK(inner("name: y", {"--outer.inner.name="}).sample.name.empty());
  CHECK(problem({"--outer.inner.flag=2"}).find("expected true or false, got the integer 2") !=
        std::string::npos);
  CHECK(problem({"--outer.inner.flag", "yes"}) ==
        "command line: outer.inner.flag: expected true or false, got the string \"yes\"");
  CHECK(problem({"--outer.inner.flag", "a.yaml"}) ==
        "command line: expected --section.key value, got 'a.yaml'; give the configuration file first, before "
        "all options");
  CHECK(problem({"--outer.inner.names", "[a"}).find("expected a list of a, b or c, got the string \"[a\"") !=
        std::string::npos);
  CHECK(problem({"--outer.inner.rules", "x"}).find("outer.inner.rules[0]: expected a table of keys") !=
        std::string::npos);
}

TEST_CASE("renamed keys, sections and values are read, and a note says so", "[config]") {
  Result key = inner("counter: 5");
  CHECK(key.sample.count == 5);
  CHECK(key.notes == Lines{"f:1:17: outer.inner.counter is now called outer.inner.count"});
  Result section = read("old_section: {count: 5}", {"--old_section.flag"});
  CHECK(section.sample.count == 5);
  CHECK(section.sample.flag);
  CHECK(section.notes == Lines{"f:1:1: old_section is now called outer.inner",
                               "command line: old_section.flag is now called outer.inner.flag"});
  Result value = inner("names: [aa]");
  CHECK(value.sample.names == Lines{"a"});
  CHECK(value.notes == Lines{"f:1:25: outer.inner.names: 'aa' is now called 'a'"});
  CHECK(inner("count: 5, counter: 6").problems ==
        Lines{"f:1:27: outer.inner.count is given twice, first at f:1:24"});
}

TEST_CASE("fates: noted and refused only where it differs from the default", "[config]") {
  CHECK(inner("old_switch: false, old_depth: 1, danger: 1, path: null").notes.empty());
  CHECK(inner("old_switch: false, danger: 1, path: null").problems.empty());
  CHECK(inner("old_switch: true, old_depth: 2").notes ==
        Lines{"f:1:29: outer.inner.old_switch, outer.inner.old_depth ignored: there is no switch"});
  CHECK(inner("danger: 2").problems ==
        Lines{"f:1:25: outer.inner.danger: 2 is not supported: it changes results"});
  CHECK(inner("danger: x").problems ==
        Lines{"f:1:25: outer.inner.danger: expected an integer, got the string \"x\""});
  CHECK(inner("path: p").problems == Lines{"f:1:23: outer.inner.path: p is not supported: there is no path"});
  CHECK(inner("danger: 2", {"--outer.inner.danger", "1"}).problems.empty());
  CHECK(inner("mode: maybe").problems == Lines{"f:1:23: outer.inner.mode: maybe is not supported: be clear"});
  CHECK(inner("names: [a, z]").problems == Lines{"f:1:24: outer.inner.names: z is not supported: z is last"});
}

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
