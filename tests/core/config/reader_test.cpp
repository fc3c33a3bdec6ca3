#include "core/config/reader.h"

#include "core/error.h"
#include "tests/core/config/sample.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::config;
using namespace ottava::test;

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
