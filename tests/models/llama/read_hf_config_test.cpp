#include "models/llama/read_hf_config.h"

#include "core/io/atomic_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("HF config: our models survive the way there and back") {
  TemporaryFolder folder;
  for (const char* flavor : {"debugmodel", "1B", "3B", "8B", "70B", "405B"}) {
    for (int variant = 0; variant < 5; ++variant) {
      LlamaConfig config = llama_flavor(flavor);
      config.qkv_bias = variant == 1;
      config.qk_norm = variant == 2;
      config.mistral = variant >= 3;
      if (variant == 4) config.sliding_window = 4096;
      HfConfig hf = hf_config_of(config, 4096);
      CHECK(hf.max_position_embeddings == 4096);
      write_file_atomically(folder / "config.json", to_json(hf));
      const LlamaConfig back = read_hf_config(folder.path());
      CHECK((hf_config_of(back, 4096) == hf));
      // What a new member does not compile in needs a line for it.
      const auto& [dim, layers, heads, kv_heads, head_dim, ffn_dim, vocab_size, eps, theta, scaling, is_tied,
                   qkv_bias, qk_norm, is_mistral, window] = config;
      CHECK((back.dim == dim && back.layers == layers && back.heads == heads));
      CHECK((back.kv_heads == kv_heads && back.head_dim == head_dim));
      CHECK((back.ffn_dim == ffn_dim && back.vocab_size == vocab_size));
      CHECK(back.norm_eps == eps);
      CHECK(back.rope_theta == theta);
      CHECK((back.rope_scaling == scaling));
      CHECK(back.tied_embeddings == is_tied);
      CHECK(back.qkv_bias == qkv_bias);
      CHECK(back.qk_norm == qk_norm);
      CHECK(back.mistral == is_mistral);
      CHECK(back.sliding_window == window);
      CHECK(parameter_count(back) == parameter_count(config));
    }
  }
}

TEST_CASE("HF config: the decimal number is written, and what has no family is refused") {
  LlamaConfig config;
  CHECK_THAT(to_json(hf_config_of(config, 2048)), Contains("\"rms_norm_eps\": 1e-05"));
  config.qkv_bias = config.qk_norm = true;
  CHECK_THROWS_WITH(
      hf_config_of(config, 2048),
      Contains("qkv_bias and qk_norm are both set, which no Hugging Face model family supports"));
  TemporaryFolder folder;
  CHECK_THROWS_WITH(read_hf_config(folder.path()), Contains("config.json: No such file"));
}

}  // namespace
}  // namespace ottava
