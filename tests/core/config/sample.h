#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/reader.h"
#include "core/config/source.h"

// A section with keys of every type, read from a file and a command line.

namespace ottava::test {

using namespace config;

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

inline void declare(Section& s, Rule& c) {
  s.field("match", c.match, "what it is for").required();
  s.field("to", c.to, "where").one_of({"a", "b"});
  s.field("factor", c.factor, "").above(0);
}

inline void declare(Section& s, Sample& c) {
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

inline Result read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
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
inline Result inner(const std::string& body, const std::vector<std::string>& overrides = {}) {
  return read("outer: {inner: {" + body + "}}", overrides);
}
using Lines = std::vector<std::string>;

}  // namespace ottava::test
