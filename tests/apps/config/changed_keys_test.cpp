#include "apps/config/changed_keys.h"

#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("a source that has training's format by name and one that has it by null do not differ",
          "[config]") {
  const auto changed = [](const std::string& before, const std::string& now) {
    const auto mixed = [](const std::string& keys) {
      return config_of_text("training: {text_key: body, mixture: [{name: a, path: a, weight: 1" + keys +
                            "}]}");
    };
    return changed_keys(print_config(mixed(before)), "the checkpoint", mixed(now));
  };
  CHECK(changed(", format: auto, text_key: body", "").empty());
  CHECK(changed("", ", format: auto").empty());
  const std::vector<std::string> changes = changed(", format: auto, text_key: text", "");
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].find("text_key: text") < changes[0].find(" -> "));
  CHECK(changes[0].find("text_key: body") > changes[0].find(" -> "));
}
