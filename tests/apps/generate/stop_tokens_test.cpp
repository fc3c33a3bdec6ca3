#include "apps/generate/stop_tokens.h"

#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;

TEST_CASE("texts end at the tokenizer's EOS and at those of generation_config.json, else of config.json") {
  const auto tokenizer = Tokenizer::load(OTTAVA_SOURCE_DIR "/tests/golden/evaluate/model");
  const int32_t eos = tokenizer->eos_id().value();
  const TemporaryFolder folder;
  std::ofstream(folder / "config.json") << R"({"eos_token_id": [5, 6]})";
  CHECK(stop_tokens(folder.path(), *tokenizer) == std::vector<int32_t>{eos, 5, 6});
  std::ofstream(folder / "config.json") << R"({"model_type": "llama"})";
  CHECK(stop_tokens(folder.path(), *tokenizer) == std::vector<int32_t>{eos, 2});
  std::ofstream(folder / "config.json") << R"({"model_type": "llama", "eos_token_id": null})";
  CHECK(stop_tokens(folder.path(), *tokenizer) == std::vector<int32_t>{eos});
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": 7})";
  CHECK(stop_tokens(folder.path(), *tokenizer) == std::vector<int32_t>{eos, 7});
}
