#include "core/text/listed.h"

#include <vector>

#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("listed puts items side by side and counts those above a limit") {
  const auto text = [](int item) { return std::to_string(item); };
  CHECK(listed(std::vector<int>{}, text).empty());
  CHECK(listed(std::vector<int>{}, text, 0).empty());
  CHECK(listed(std::vector{7}, text) == "7");
  CHECK(listed(std::vector{7, 8, 9}, text) == "7, 8, 9");
  CHECK(listed(std::vector{7, 8, 9}, text, 3) == "7, 8, 9");
  CHECK(listed(std::vector{7, 8, 9}, text, 1) == "7 and 2 more");
}

TEST_CASE("add_item separates all but the first item") {
  std::string list;
  add_item(list, "a", "; ");
  add_item(list, "b", "; ");
  CHECK(list == "a; b");
}
