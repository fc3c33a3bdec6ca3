#include "core/io/json.h"
#include "models/hf_config.h"
#include "models/llama/model_of_section.h"
#include "models/llama/read_hf_config.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

using Catch::Matchers::Contains;

// A small Mistral with more members.
std::string mistral_with(const std::string& more) {
  return R"({"model_type":"mistral","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":8,)"
         R"("intermediate_size":96,"vocab_size":100)" +
         (more.empty() ? "" : "," + more) + "}";
}

// What MistralConfig of transformers 5.24 makes of the same text.
TEST_CASE("Mistral: what a file leaves out is what transformers takes") {
  const HfConfig c = parse_hf_config(mistral_with(""), "t");
  CHECK(c.family == HfFamily::mistral);
  CHECK(c.num_key_value_heads == 8);
  CHECK(c.head_dim == 8);
  CHECK(c.max_position_embeddings == 131072);
  CHECK(c.rms_norm_eps == 1e-6);
  CHECK(c.sliding_window == 4096);
  CHECK_FALSE(c.tie_word_embeddings);
  CHECK_FALSE(parse_hf_config(mistral_with(R"("sliding_window":null)"), "t").sliding_window);
  CHECK(parse_hf_config(mistral_with(R"("head_dim":16)"), "t").head_dim == 16);
  CHECK_THROWS_WITH(parse_hf_config(mistral_with(R"("num_key_value_heads":null)"), "t"),
                    Contains("num_key_value_heads is null, which transformers does not take for left out"));
  CHECK_THROWS_WITH(parse_hf_config(mistral_with(R"("sliding_window":0)"), "t"),
                    Contains("sliding_window is 0, expected 1 to 2^31"));
  // Other families do not look at it.
  std::string llama = mistral_with(R"("sliding_window":4)");
  llama.replace(llama.find("mistral"), 7, "llama");
  CHECK_FALSE(parse_hf_config(llama, "t").sliding_window);
}

TEST_CASE("Mistral: a file that is read and written stays one, and as another family says no window") {
  const std::string source = mistral_with(R"("architectures":["MistralForCausalLM"],"head_dim":16)");
  const HfConfig was = parse_hf_config(source, "t");
  const HfConfig now = hf_config_of(llama_config_of(was), was.max_position_embeddings);
  CHECK(now.family == HfFamily::mistral);
  CHECK(now.sliding_window == 4096);
  const HfConfigEdit same = edit_hf_config(source, "t", now);
  CHECK(same.changes.empty());
  CHECK(Json::parse(same.json, "").dump() == Json::parse(source, "").dump());
  CHECK(Json::parse(to_json(now), "").at("architectures", "").as_array("")[0].as_string("") ==
        "MistralForCausalLM");

  HfConfig open = was;
  open.sliding_window.reset();
  const HfConfigEdit wider = edit_hf_config(source, "t", open);
  CHECK((wider.changes == std::vector<std::string>{"sliding_window 4096 -> null"}));
  CHECK((parse_hf_config(wider.json, "edited") == open));
  CHECK((parse_hf_config(to_json(open), "written") == open));

  HfConfig llama = open;
  llama.family = HfFamily::llama;
  CHECK(differences(was, llama).empty());  // of sequences within the window
  const std::string as_llama = edit_hf_config(source, "t", llama).json;
  CHECK((parse_hf_config(as_llama, "edited") == llama));
  CHECK((parse_hf_config(edit_hf_config(as_llama, "t", open).json, "back") == open));
}

TEST_CASE("Mistral: sequences that are longer than the window are refused") {
  TemporaryFolder folder;
  folder.write("config.json", mistral_with(R"("sliding_window":32)"));
  const HfPositions within = read_hf_positions(folder.path());
  CHECK(within.most == 32);
  CHECK(within.limit == "sliding_window");
  LlamaConfig model = read_hf_config(folder.path());
  const auto resolve = [&](int64_t tokens) { model_of_section({}, model, 0, {tokens, "training.seq_len"}); };
  CHECK_NOTHROW(resolve(32));
  CHECK_THROWS_WITH(resolve(33),
                    "[model] sequences of 33 tokens are longer than sliding_window 32 in config.json, and "
                    "attention within a window is not supported: lower training.seq_len to that, or set "
                    "sliding_window to null there, if the model shall see whole sequences from now on");
  model.sliding_window.reset();
  CHECK_NOTHROW(resolve(33));
  folder.write("config.json", mistral_with(R"("sliding_window":32,"max_position_embeddings":32)"));
  CHECK(read_hf_positions(folder.path()).limit == "max_position_embeddings");
}

}  // namespace
}  // namespace ottava
