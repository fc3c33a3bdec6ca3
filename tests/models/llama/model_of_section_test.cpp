#include "models/llama/model_of_section.h"

#include <cmath>

#include "models/hf_config.h"
#include "tests/support/catch.h"

namespace ottava {
namespace {

using Catch::Matchers::Contains;
using Type = RopeScaling::Type;

std::optional<RopeScaling> resolved_scaling(const RopeScalingConfig& keys, std::optional<RopeScaling> base) {
  ModelConfig c;
  c.rope_scaling = keys;
  LlamaConfig model;
  model.rope_scaling = base;
  return model_of_section(c, model, 0, {}).rope_scaling;
}

constexpr RopeScaling kYarn{
    .type = Type::yarn, .factor = 4, .original_max_position_embeddings = 512, .attention_factor = 1.5};

TEST_CASE("keys of model.rope_scaling replace what a model has, or begin another type") {
  CHECK((resolved_scaling({}, kYarn) == kYarn));
  RopeScaling expected = kYarn;
  expected.factor = 8, expected.beta_fast = 16, expected.truncate = false;
  CHECK((resolved_scaling({.factor = 8, .beta_fast = 16, .truncate = false}, kYarn) == expected));
  expected = {.type = Type::yarn, .factor = 2, .original_max_position_embeddings = 64};
  CHECK((resolved_scaling({.rope_type = Type::yarn, .factor = 2, .original_max_position_embeddings = 64},
                          RopeScaling{}) == expected));
  CHECK((resolved_scaling({.rope_type = Type::linear, .factor = 2}, kYarn) ==
         RopeScaling{.type = Type::linear, .factor = 2}));
  CHECK((resolved_scaling({.rope_type = Type::llama3}, kYarn) == RopeScaling{}));
  CHECK((resolved_scaling({.low_freq_factor = 2}, {}) == RopeScaling{.low_freq_factor = 2}));
  CHECK_FALSE(resolved_scaling({.factor = 1}, kYarn));
  CHECK_FALSE(resolved_scaling({.rope_type = Type::yarn, .factor = 1}, {}));
  CHECK(resolved_scaling({.factor = 1, .attention_factor = 1.2}, kYarn)->attention_factor == 1.2);
}

// As transformers has it of a config.json with that factor.
TEST_CASE("an attention factor that config.json gives by mscales follows a factor of one's own") {
  const std::optional<RopeScaling> base =
      parse_hf_config(R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":2,)"
                      R"("num_attention_heads":8,"intermediate_size":96,"vocab_size":100,"rope_scaling":)"
                      R"({"rope_type":"yarn","factor":40,"mscale":1.0,"mscale_all_dim":0.5}})",
                      "t")
          .rope_scaling;
  const auto expected = [](double factor) {
    return Approx((1 + 0.1 * std::log(factor)) / (1 + 0.05 * std::log(factor)));
  };
  CHECK(attention_factor_of(*base) == expected(40));
  CHECK(attention_factor_of(*resolved_scaling({.factor = 4}, base)) == expected(4));
  // A factor of one's own stands instead, in what is written, too.
  const std::optional<RopeScaling> own = resolved_scaling({.factor = 4, .attention_factor = 1.25}, base);
  CHECK(attention_factor_of(*own) == 1.25);
  HfConfig written;
  written.hidden_size = written.num_attention_heads = written.num_key_value_heads = written.head_dim = 64;
  written.num_hidden_layers = written.intermediate_size = written.vocab_size = 64;
  written.rope_scaling = own;
  CHECK((parse_hf_config(to_json(written), "written").rope_scaling == own));
}

TEST_CASE("keys of model.rope_scaling that do nothing, and what nobody said, are refused") {
  const auto refused = [](const RopeScalingConfig& keys, std::optional<RopeScaling> base,
                          const std::string& words) {
    CHECK_THROWS_WITH(resolved_scaling(keys, base), "[model] " + words);
  };
  refused({.low_freq_factor = 2}, kYarn,
          "rope_scaling.low_freq_factor is set, which rope type yarn does not use: remove it, or set "
          "model.rope_scaling.rope_type");
  refused({.attention_factor = 2}, {},
          "rope_scaling.attention_factor is set, which rope type llama3 does not use: remove it, or set "
          "model.rope_scaling.rope_type");
  refused({.rope_type = Type::linear, .factor = 2, .original_max_position_embeddings = 9}, {},
          "rope_scaling.original_max_position_embeddings is set, which rope type linear does not use: remove "
          "it, or set model.rope_scaling.rope_type");
  for (const Type type : {Type::linear, Type::yarn}) {
    CHECK_THROWS_WITH(resolved_scaling({.rope_type = type}, RopeScaling{}),
                      Contains("needs rope_scaling.factor, of which there is none for this model: set "
                               "model.rope_scaling.factor"));
  }
  refused({.rope_type = Type::yarn, .factor = 2}, {},
          "rope type yarn needs rope_scaling.original_max_position_embeddings, of which there is none for "
          "this model: set model.rope_scaling.original_max_position_embeddings");
  refused(
      {.beta_slow = 64}, kYarn,
      "rope_scaling: beta_fast is 32, expected at least beta_slow 64: change one of the two, or set both");
}

TEST_CASE("a model is shown with all of its RoPE scaling") {
  const auto shown = [](const RopeScaling& scaling) {
    LlamaConfig model;
    model.rope_scaling = scaling;
    std::vector<ModelValue> values;
    model_of_section({}, model, 0, {}, &values);
    for (const ModelValue& value : values)
      if (value.name == "rope_scaling") return value.value;
    return std::string("none");
  };
  CHECK(shown({}) == "llama3, factor 8, frequencies 1 to 4, original length 8192");
  CHECK(shown({.type = Type::linear, .factor = 4}) == "linear, factor 4");
  CHECK(shown({.type = Type::yarn, .factor = 4}) ==
        "yarn, factor 4, original length 8192, rotations 32 to 1, attention factor 1.13863");
  RopeScaling whole = kYarn;
  whole.truncate = false;
  CHECK(shown(whole) ==
        "yarn, factor 4, original length 512, rotations 32 to 1, not truncated, attention factor 1.5");
}

}  // namespace
}  // namespace ottava
