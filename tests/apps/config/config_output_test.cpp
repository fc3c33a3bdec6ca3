#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/commands/config_command.h"
#include "apps/config/config.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"
#include "tests/support/temporary_folder.h"

// What the program prints of a configuration: trees that load, the schema, the page of keys.

using namespace ottava;
using Catch::Matchers::Contains;
using ottava::test::config_of_text;
namespace fs = std::filesystem;

TEST_CASE("the schema describes every key and is a JSON schema", "[config]") {
  auto schema = nlohmann::json::parse(config_schema());
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  size_t keys = 0;
  // Every node says what it accepts; objects are closed, so that editors mark unknown keys.
  auto walk = [&](auto&& self, const nlohmann::json& node) -> void {
    if (node.contains("properties")) {
      CHECK(node["additionalProperties"] == false);
      for (const auto& [name, child] : node["properties"].items()) {
        INFO(name);
        const std::string description = child.value("description", "");
        bool says = child.contains("type") || child.contains("enum") || child.contains("anyOf") ||
                    description.find("Now called ") != std::string::npos;
        CHECK(says);
        keys += !child.contains("properties");
        self(self, child);
      }
    }
    if (node.contains("items")) self(self, node["items"]);
  };
  walk(walk, schema);
  std::string fates = config_fates();
  size_t rows = 0;
  std::stringstream lines(fates);
  for (std::string line; std::getline(lines, line);) rows += line.rfind("| `", 0) == 0;
  CHECK(rows > 200);
  CHECK(keys >= rows);  // and the keys of tables in lists
  CHECK(schema["properties"]["quantize"]["properties"]["linear"]["properties"]["float8"]["properties"]
              ["policy"]["items"]["required"] == nlohmann::json::parse(R"(["match", "recipe"])"));
}

TEST_CASE("the config command prints a tree that loads, the schema and the fates", "[config]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.yaml", "training: {steps: 5, gc_freq: 7}\n"),
                    own = folder.write(
                        "own.yaml",
                        "model: {dim: 96, n_layers: 3, n_heads: 6, hf_assets_path: \"" OTTAVA_SOURCE_DIR
                        "/configs/tokenizers/en-2256\"}\n");
  std::stringstream out, notes;
  run_config_command({file, {"--training.seed", "9"}, ConfigCommand::Print::tree}, out, notes);
  CHECK((config_of_text(out.str()) == load_config(file, {"--training.seed", "9"})));
  CHECK(notes.str().starts_with(
      file + ":1:31: training.gc_freq ignored: there is no garbage collector\n" +
      "The model cannot be resolved: [model.hf_assets_path] './tests/assets/tokenizer' does not"));
  out.str("");
  run_config_command({own, {"--model.rope_theta", "10000"}, ConfigCommand::Print::tree}, out, notes);
  CHECK((config_of_text(out.str()) == load_config(own, {"--model.rope_theta", "10000"})));
  for (const std::string& line : {"dim             96         " + own + ":1:14",
                                  std::string("head_dim        16         dim / n_heads"),
                                  std::string("ffn_dim         256        8 dim / 3, rounded up"),
                                  std::string("vocab_size      2256       the tokenizer"),
                                  std::string("n_kv_heads      6          n_heads"),
                                  std::string("rope_theta      10000      command line"),
                                  std::string("rope_scaling    none       default")}) {
    CHECK_THAT(out.str(), Contains("#   " + line + "\n"));
  }
  out.str("");
  run_config_command({file, {}, ConfigCommand::Print::explained_tree}, out, notes);
  CHECK_THAT(out.str(), Contains("  # number of optimizer steps in the whole run [steps]\n  steps: 5\n"));
  CHECK_THAT(out.str(), Contains("  # shape of the decay (linear, sqrt or cosine)\n  decay_type: linear\n"));
  CHECK_THAT(out.str(),
             Contains("skip: leave the line out and count it\n  bad_records: error\n"));  // explains all
  out.str("");
  run_config_command({"", {}, ConfigCommand::Print::schema}, out, notes);
  CHECK(out.str() == config_schema());
  out.str("");
  run_config_command({"", {}, ConfigCommand::Print::fates}, out, notes);
  CHECK(out.str() == config_fates());
}

TEST_CASE("the page of keys is the one that the program prints", "[config]") {
  INFO("write it anew: ottava config --fates > configs/keys.md");
  CHECK((read_file(OTTAVA_SOURCE_DIR "/configs/keys.md") == config_fates()));
}

TEST_CASE("the example configurations load", "[config]") {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(OTTAVA_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".yaml" && entry.path().extension() != ".toml") continue;
    INFO(entry.path().string());
    Config c;
    REQUIRE_NOTHROW(c = load_config(entry.path()));
    CHECK(c.provenance.notes.empty());
    CHECK((config_of_text(print_config(c)) == c));
    ++count;
  }
  CHECK(count >= 3);
}
