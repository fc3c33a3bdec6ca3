#include "models/llama/llama_config.h"

#include <algorithm>

#include "models/llama/llama_parameters.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("flavors have the published parameter counts") {
  CHECK(parameter_count(llama_flavor("debugmodel")) == 6'163'712);
  CHECK(parameter_count(llama_flavor("1B")) == 1'235'814'400);
  CHECK(parameter_count(llama_flavor("3B")) == 3'212'749'824);
  CHECK(parameter_count(llama_flavor("8B")) == 8'030'261'248);
  CHECK(parameter_count(llama_flavor("70B")) == 70'553'706'496);
  CHECK(parameter_count(llama_flavor("405B")) == 405'853'388'800);
  CHECK_THROWS_WITH(llama_flavor("7B"),
                    "[model] flavor '7B' is unknown: expected one of debugmodel, 1B, 3B, 8B, 70B, 405B, or "
                    "hf (dimensions from config.json)");
}

TEST_CASE("model FLOPs per token are TorchTitan's") {
  CHECK(model_flops_per_token(llama_flavor("debugmodel"), 2048) == Approx(7.1585e7).epsilon(1e-4));
  CHECK(model_flops_per_token(llama_flavor("8B"), 8192) == Approx(5.7914e10).epsilon(1e-4));
  CHECK(model_flops_per_token(llama_flavor("70B"), 8192) == Approx(4.8144e11).epsilon(1e-4));
  CHECK(model_flops_per_token(llama_flavor("405B"), 8192) == Approx(2.6254e12).epsilon(1e-4));
}

TEST_CASE("the width of the feed-forward layer follows the Llama rule") {
  CHECK(llama_ffn_dim(256, 0, 256) == 768);
  CHECK(llama_ffn_dim(4096, 1.3, 1024) == 14336);
  CHECK(llama_ffn_dim(8192, 1.3, 4096) == 28672);
  CHECK(llama_ffn_dim(16384, 1.2, 4096) == 53248);
}

TEST_CASE("shapes that cannot be built are refused") {
  LlamaConfig c = llama_flavor("debugmodel");
  c.kv_heads = 3;
  CHECK_THROWS_WITH(validate(c),
                    "[model] n_heads 16 is not a multiple of n_kv_heads 3: each key/value head must serve a "
                    "whole number of query heads");
  c = llama_flavor("debugmodel");
  c.head_dim = 12;
  CHECK_THROWS_WITH(validate(c),
                    "[model] head_dim 12 is not a multiple of 8 (dim 256 / n_heads 16): choose other head "
                    "counts or set model.head_dim");
  c.head_dim = 520;
  CHECK_THROWS_WITH(
      validate(c),
      "[model] head_dim 520 is more than 512, the most that attention supports (dim 256 / n_heads 16): "
      "choose more heads or set model.head_dim");
  c = llama_flavor("debugmodel");
  c.layers = 0;
  CHECK_THROWS_WITH(validate(c), "[model] n_layers is 0, expected at least 1");
  c.layers = int64_t{1} << 31;  // config.json may say so
  CHECK_THROWS_WITH(validate(c), "[model] n_layers is 2147483648, expected at most 4096");
  c = llama_flavor("debugmodel");
  c.rope_scaling->low_freq_factor = 4;  // the flavor's high_freq_factor
  CHECK_THROWS_WITH(validate(c),
                    "[model] rope_scaling: high_freq_factor is 4, expected more than low_freq_factor 4: "
                    "change one of the two, or set both");
}

TEST_CASE("a model whose parameters 64 bits do not count is refused") {
  LlamaConfig c = llama_flavor("405B");
  c.dim = 1 << 20;
  c.layers = 4096;
  c.heads = c.kv_heads = 8192;
  CHECK_NOTHROW(validate(c));
  c.ffn_dim = 8 << 20;
  CHECK(parameter_count(c) > 0);
  CHECK_NOTHROW(validate(c));
  c.ffn_dim = llama_ffn_dim(c.dim, 4096, 256);  // 1.5e20 that were 1.8e16 modulo 2^64
  CHECK_THROWS_WITH(validate(c),
                    "[model] dim 1048576, ffn_dim 11453243392, n_layers 4096, n_heads 8192 of 128 and "
                    "vocab_size 128256 make 1.5e+20 parameters, expected at most 2.9e+17: lower one of them");
}

TEST_CASE("the parameter table names every tensor once, in unit order") {
  LlamaConfig c = llama_flavor("debugmodel");
  c.qkv_bias = c.qk_norm = true;
  LlamaParameters p = llama_parameters(c);
  CHECK(p.units == 8);
  CHECK(p.specs[static_cast<size_t>(p.blocks[2].wqkv)].name == "layers.2.attention.wqkv");
  CHECK(p.specs[static_cast<size_t>(p.blocks[2].wqkv)].parts[1].hf_name ==
        "model.layers.2.self_attn.k_proj.weight");
  const ParameterSpec& bias = p.specs[static_cast<size_t>(p.blocks[2].wqkv_bias)];
  CHECK((bias.is_vector && bias.rows() == 768));
  std::vector<std::string> names;
  int unit = 0;
  for (const ParameterSpec& spec : p.specs) {
    CHECK(spec.unit >= unit);
    unit = spec.unit;
    for (const ParameterPart& part : spec.parts) names.push_back(part.hf_name);
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  c.tied_embeddings = true;
  LlamaParameters tied = llama_parameters(c);
  CHECK(tied.output == tied.embedding);
  CHECK(tied.specs.size() + 1 == p.specs.size());
}
