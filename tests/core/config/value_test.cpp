#include "core/config/value.h"

#include <cmath>
#include <limits>

#include "core/config/nearest.h"
#include "tests/support/catch.h"

using namespace ottava::config;
using Kind = Value::Kind;

TEST_CASE("plain scalars follow the YAML 1.2 core schema", "[config]") {
  auto kind = [](const char* text) { return plain_scalar(text, {}).kind; };
  for (const char* text : {"", "~", "null", "Null", "NULL"}) CHECK(kind(text) == Kind::null);
  for (const char* text : {"true", "True", "FALSE"}) CHECK(kind(text) == Kind::boolean);
  for (const char* text : {"0", "-12", "+7", "0x1F", "0o17", "9223372036854775807"})
    CHECK(kind(text) == Kind::integer);
  for (const char* text :
       {"1e-4", "1.", ".5", "-0.5E+3", "+1.5", ".inf", "-.INF", ".nan", "9223372036854775808"}) {
    CHECK(kind(text) == Kind::real);
  }
  for (const char* text : {"yes", "on", "tRue", "1_000", "0x", "1e", "1 2", "inf", "nan", "infinity", "--1",
                           "+-1", "-", "+", ".", "0b1", "1:30", "0xG", "1.2.3"}) {
    INFO(text);
    CHECK(kind(text) == Kind::text);
  }
  CHECK(plain_scalar("0x1F", {}).integer == 31);
  CHECK(plain_scalar("0o17", {}).integer == 15);
  CHECK(plain_scalar("1e-4", {}).real == 1e-4);
  CHECK(plain_scalar("-3", {}).real == -3.0);
  CHECK(std::isinf(plain_scalar("1e999", {}).real));
  CHECK(plain_scalar("1e-999", {}).real == 0);
  CHECK(plain_scalar("-.inf", {}).real < 0);
}

TEST_CASE("numbers print as the shortest text that reads back the same", "[config]") {
  for (double x : {0.0, 1.0, -2.0, 0.1, 8e-4, 1e-8, 1e300, 123456789.0, std::nextafter(1.0, 2.0),
                   std::numeric_limits<double>::denorm_min(), 1e16, 1e22}) {
    Value again = plain_scalar(to_text(x), {});
    INFO(to_text(x));
    CHECK(again.kind == Kind::real);
    CHECK(again.real == x);
  }
  CHECK(to_text(1.0) == "1.0");
  CHECK(to_text(8e-4) == "0.0008");
  CHECK(to_text(1e-8) == "1.0e-08");
  CHECK(to_text(1.5e22) == "1.5e+22");
  CHECK(plain_scalar(to_text(INFINITY), {}).real == INFINITY);
  CHECK(plain_scalar(to_text(-INFINITY), {}).real == -INFINITY);
  CHECK(std::isnan(plain_scalar(to_text(NAN), {}).real));
}

TEST_CASE("values are equal by content, not by place", "[config]") {
  Value a = plain_scalar("1e3", {});
  CHECK(same(a, Value::of(1000.0)));
  CHECK_FALSE(same(a, Value::of(int64_t{1000})));
  CHECK_FALSE(same(Value::of(true), Value::of(false)));
  CHECK_FALSE(same(Value::list_of({"a"}), Value::list_of({"b"})));
  CHECK_FALSE(same(Value::list_of({"a"}), Value::list_of({"a", "b"})));
  CHECK(same(Value::list_of({"a"}), Value::list_of({"a"})));
}

TEST_CASE("a value is described as a person would", "[config]") {
  CHECK(describe(plain_scalar("many", {})) == "the string \"many\"");
  CHECK(describe(plain_scalar("3", {})) == "the integer 3");
  CHECK(describe(plain_scalar("1e3", {})) == "the number 1e3");
  CHECK(describe(plain_scalar("true", {})) == "the boolean true");
  CHECK(describe(plain_scalar("~", {})) == "nothing (null)");
  CHECK(describe(Value::list_of({})) == "a list");
  CHECK(describe(Value::of(std::string(1000, 'x'))).size() < 100);
}

TEST_CASE("edit distance counts swaps of neighbours as one", "[config]") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("steps", "steps") == 0);
  CHECK(edit_distance("stesp", "steps") == 1);
  CHECK(edit_distance("step", "steps") == 1);
  CHECK(edit_distance("stepss", "steps") == 1);
  CHECK(edit_distance("stexs", "steps") == 1);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("the nearest name is offered only when it is near", "[config]") {
  std::vector<std::string> names = {"lr", "local_batch_size", "steps", "seq_len"};
  CHECK(nearest("stpes", names) == "steps");
  CHECK(nearest("batch_size", names) == "local_batch_size");
  CHECK(nearest("lrr", names) == "lr");
  CHECK(nearest("xyzzy", names).empty());
  CHECK(nearest("", names).empty());
  CHECK(nearest(std::string(100'000, 's'), names).empty());
  CHECK(one_of_text({"a"}) == "a");
  CHECK(one_of_text({"", "b", "c"}) == "\"\", b or c");
}
