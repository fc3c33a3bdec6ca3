#include "apps/config.h"

#include <filesystem>

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;
namespace fs = std::filesystem;

TEST_CASE("defaults are TorchTitan's, and print and reload as themselves", "[config]") {
  Config c = load_config("");
  CHECK(c.optimizer.lr == 8e-4);
  CHECK(c.training.steps == 10000);
  Config again = parse_config(print_config(c), "printed.yaml");
  CHECK(again == c);
  CHECK(again.provenance.notes.empty());
}

TEST_CASE("TorchTitan's own files load", "[config]") {
  fs::path folder = fs::path(OTTAVA_SOURCE_DIR) / "../shared/data/torchtitan/train_configs";
  for (const char* name : {"debug_model", "llama3_8b", "llama3_70b", "llama3_405b"}) {
    fs::path file = folder / (std::string(name) + ".toml");
    if (!fs::exists(file)) continue;
    Config c = load_config(file);
    INFO(print_config(c));
    CHECK(parse_config(print_config(c), "printed.yaml") == c);
  }
}
