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
  // LlamaConfig has 2 where it is left out, but from_pretrained() of transformers 5.24 then stops at none.
  for (const char* none :
       {R"({"model_type": "llama"})", R"({"model_type": "llama", "eos_token_id": null})"}) {
    std::ofstream(folder / "config.json") << none;
    CHECK(stop_tokens(folder.path(), *tokenizer) == std::vector<int32_t>{eos});
  }
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": 7})";
  CHECK(stop_tokens(folder.path(), *tokenizer) == std::vector<int32_t>{eos, 7});
}
