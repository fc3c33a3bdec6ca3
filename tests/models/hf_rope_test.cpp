#include <cmath>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/hf_config.h"
#include "tests/support/catch.h"

// RoPE in a config.json, from its text to the table.
namespace ottava {
namespace {

using Catch::Matchers::Contains;

// A small llama of at most 4096 positions.
std::string rope_text(const std::string& more) {
  return R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
         R"("intermediate_size":96,"vocab_size":100,"max_position_embeddings":4096,)" +
         more + "}";
}

std::string scaled(const std::string& members) { return rope_text("\"rope_scaling\":{" + members + "}"); }

TEST_CASE("RoPE: frequencies and attention factor are transformers', in every form and type") {
  const std::string path = OTTAVA_SOURCE_DIR "/tests/golden/rope.json";
  const Json cases = Json::parse(read_file(path), path);
  for (const Json& one : cases.as_array(path)) {
    const HfConfig c = parse_hf_config(one.at("config", path).dump(), "config.json");
    INFO(one.at("name", path).as_string(path));
    const size_t dim = static_cast<size_t>(c.head_dim), half = dim / 2;
    std::vector<float> table(2 * dim);
    fill_rope_table(table.data(), 2, c.head_dim, c.rope_theta, c.rope_scaling);
    const double size = one.at("attention_factor", path).as_number(path);
    CHECK(table[0] == Approx(size).epsilon(1e-7));
    const Json::Array& frequencies = one.at("frequencies", path).as_array(path);
    REQUIRE(frequencies.size() == half);
    // Both sides round to FP32: transformers the frequency, we its cosine and sine.
    for (size_t i = 0; i < half; ++i) {
      const double cos = table[dim + i], sin = table[dim + half + i];
      CHECK(std::atan2(sin, cos) == Approx(frequencies[i].as_number(path)).epsilon(1e-6));
      CHECK(std::hypot(sin, cos) == Approx(size).epsilon(1e-6));
    }
    // What is written computes the same.
    CHECK((parse_hf_config(to_json(c), "written") == c));
  }
  CHECK(cases.as_array(path).size() == 25);
}

TEST_CASE("RoPE: a type or a value that would compute something else is refused by name") {
  const auto refused = [](const std::string& text, const std::string& words) {
    INFO(text);
    CHECK_THROWS_WITH(parse_hf_config(text, "c.json"), Contains(words) && Contains("c.json"));
  };
  for (const std::string type : {"dynamic", "longrope", "proportional"}) {
    refused(scaled("\"rope_type\":\"" + type + "\",\"factor\":2"),
            "rope type is '" + type + "', expected default, llama3, linear, yarn: others are not supported");
  }
  const std::string linear = R"("rope_type":"linear","factor":2)", yarn = R"("rope_type":"yarn","factor":2)";
  refused(scaled(R"("rope_type":"linear")"), "has no 'factor'");
  refused(scaled(R"("rope_type":"yarn","factor":null)"), "has no 'factor'");
  refused(scaled(linear + R"(,"beta_fast":32)"),
          "has 'beta_fast', which rope type 'linear' does not use: correct rope_type, or remove it");
  refused(scaled(linear + R"(,"original_max_position_embeddings":512)"), "which rope type 'linear'");
  refused(scaled(linear + R"(,"mscale":1)"), "has 'mscale', which rope type 'linear' does not use");
  refused(scaled(yarn + R"(,"low_freq_factor":1)"), "has 'low_freq_factor', which rope type 'yarn'");
  refused(scaled(yarn + R"(,"finetuned":true)"), "has 'finetuned', which is not supported");
  refused(scaled(yarn + R"(,"truncate":null)"), "truncate is null, which transformers does not take");
  refused(scaled(yarn + R"(,"truncate":1)"), "expected true or false");
  refused(scaled(yarn + R"(,"beta_fast":0)"), "beta_fast is 0, expected more than 0");
  refused(scaled(yarn + R"(,"beta_slow":33)"), "beta_fast is 32, expected at least beta_slow 33");
  refused(scaled(yarn + R"(,"attention_factor":0)"), "attention_factor is 0, expected more than 0");
  refused(scaled(yarn + R"(,"mscale":-1,"mscale_all_dim":1)"), "mscale is -1, expected more than 0");
  refused(rope_text(R"("rope_theta":1,"rope_scaling":{)" + yarn + "}"),
          "rope_theta is 1, expected more than 1 where the rope type is yarn");
  refused(rope_text(R"("original_max_position_embeddings":64,"rope_scaling":{)" + yarn +
                    R"(,"original_max_position_embeddings":32})"),
          "has original_max_position_embeddings 64, but rope_scaling has 32");
  CHECK_FALSE(parse_hf_config(rope_text(R"("rope_scaling":null)"), "t").rope_scaling);
}

TEST_CASE("RoPE: a scaling is edited in the form that it has, and what it left out stays what it was") {
  const std::string members = R"("rope_type":"yarn","factor":4)";
  const std::string forms[] = {
      scaled(members), rope_text(R"("rope_parameters":{"rope_theta":1e4,)" + members + "}"),
      rope_text(R"("original_max_position_embeddings":512,"rope_scaling":{)" + members + "}")};
  for (const std::string& source : forms) {
    INFO(source);
    const HfConfig was = parse_hf_config(source, "t");
    CHECK(was.rope_scaling->original_max_position_embeddings == (&source == &forms[2] ? 512 : 4096));
    CHECK(edit_hf_config(source, "t", was).changes.empty());
    HfConfig longer = was, other = was, linear = was, plain = was;
    longer.max_position_embeddings = 16384;
    other.rope_theta = 1e6;
    linear.rope_scaling = RopeScaling{.type = RopeScaling::Type::linear, .factor = 2};
    plain.rope_scaling.reset();
    for (const HfConfig& now : {longer, other, linear, plain}) {
      const HfConfigEdit edit = edit_hf_config(source, "t", now);
      INFO(edit.json);
      CHECK_FALSE(edit.changes.empty());
      CHECK((parse_hf_config(edit.json, "edited") == now));
    }
    CHECK_THAT(differences(was, linear).at(0), Contains(R"(rope_scaling {"rope_type":"yarn","factor":4.0)") &&
                                                   Contains(R"(and {"rope_type":"linear","factor":2.0})"));
  }
}

TEST_CASE("RoPE: every member of a scaling is written, and read again") {
  const HfConfig plain = parse_hf_config(rope_text(R"("rope_theta":1e4)"), "t");
  // What a new member does not compile in needs a row for it.
  [[maybe_unused]] const auto& [type, factor, low, high, original, fast, slow, attention, mscale, all_dim,
                                truncate] = RopeScaling{};
  using Type = RopeScaling::Type;
  const RopeScaling scalings[] = {
      {.type = Type::linear, .factor = 3},
      {.type = Type::llama3, .factor = 3, .low_freq_factor = 2, .high_freq_factor = 5},
      {.type = Type::yarn, .factor = 3, .original_max_position_embeddings = 77},
      {.type = Type::yarn, .beta_fast = 9, .beta_slow = 3},
      {.type = Type::yarn, .attention_factor = 1.25},
      {.type = Type::yarn, .mscale = 1.5, .mscale_all_dim = 0.5},
      {.type = Type::yarn, .truncate = false}};
  for (const RopeScaling& scaling : scalings) {
    HfConfig c = plain;
    c.rope_scaling = scaling;
    CHECK((parse_hf_config(to_json(c), "written") == c));
    for (const RopeScaling& other : scalings) {
      HfConfig d = plain;
      d.rope_scaling = other;
      CHECK((differences(c, d).size() == 1) == !(c == d));
    }
  }
}

}  // namespace
}  // namespace ottava
