#include "tests/core/config/sample.h"
#include "tests/support/catch.h"

// Keys on the command line.

using namespace ottava;
using namespace ottava::config;
using namespace ottava::test;

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

TEST_CASE("an option that is given several values has a note of which is used", "[config]") {
  const auto notes = [](const Lines& arguments) { return inner("count: 5", arguments).notes; };
  CHECK(notes({"--outer.inner.count", "10", "--outer.inner.count=20"}) ==
        Lines{"--outer.inner.count is given twice: 20 is used, 10 is not"});
  CHECK(notes({"--outer.inner.count=10", "--outer.inner.rate", "1", "--outer.inner.count=20",
               "--outer.inner.count", "30"}) ==
        Lines{"--outer.inner.count is given 3 times: 30 is used, 10, 20 are not"});
  CHECK(notes({"--outer.inner.count=1", "--outer.inner.count=1", "--outer.inner.count=2"}) ==
        Lines{"--outer.inner.count is given 3 times: 2 is used, 1 is not"});
  CHECK(notes({"--outer.inner.flag", "--outer.inner.no-flag"}) ==
        Lines{"--outer.inner.flag is given twice: false is used, true is not"});
  CHECK(notes({"--outer.inner.name", "a", "--outer.inner.name="}) ==
        Lines{"--outer.inner.name is given twice: \"\" is used, a is not"});
  CHECK(notes({"--outer.inner.rules", "[{match: m}]", "--outer.inner.rules", "[{match: n}]"}) ==
        Lines{"--outer.inner.rules is given twice: [{match: n}] is used, [{match: m}] is not"});
  CHECK(notes({"--outer.inner.counter", "1", "--outer.inner.count", "2"}) ==
        Lines{"command line: outer.inner.counter is now called outer.inner.count",
              "--outer.inner.count is given twice: 2 is used, 1 is not"});
  CHECK(notes({"--outer.inner.count", "10", "--outer.inner.count", "10"}).empty());
  CHECK(notes({"--outer.inner.count", "10"}).empty());
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
  for (const auto& file : {Lines{"--count", "a.yaml"}, Lines{"--count=a.toml"}})
    CHECK(problem(file) ==
          "command line: unknown option --count; give the configuration file first, without an option");
  CHECK(problem({"--outer.inner.flga", "a.yaml"}) ==
        "command line: unknown option --outer.inner.flga; did you mean --outer.inner.flag? (a "
        "configuration file comes first, before any option)");
  CHECK(problem({"--outer.inner.nmae=a.yaml"}) ==
        "command line: unknown option --outer.inner.nmae; did you mean --outer.inner.name?");
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
