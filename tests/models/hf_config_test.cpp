#include "models/hf_config.h"

#include "core/io/json.h"
#include "models/hf_family.h"
#include "tests/support/catch.h"

namespace ottava {
namespace {

using Catch::Matchers::Contains;

const char* const kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})";

// A small llama with more members.
std::string llama_with(const std::string& more) {
  return R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
         R"("intermediate_size":96,"vocab_size":100)" +
         (more.empty() ? "" : "," + more) + "}";
}

TEST_CASE("HF config: a published one") {
  HfConfig c = parse_hf_config(kLlama32, "config.json");
  CHECK(c.family == HfFamily::llama);
  CHECK(c.hidden_size == 2048);
  CHECK(c.num_key_value_heads == 8);
  CHECK(c.head_dim == 64);
  CHECK(c.rms_norm_eps == 1e-5);
  CHECK(c.rope_theta == 500000);
  REQUIRE(c.rope_scaling);
  CHECK(c.rope_scaling->factor == 32);
  CHECK(c.tie_word_embeddings);
  CHECK(c.dtype == "bfloat16");
  CHECK(c.bos_token_id == 128000);
  CHECK(c.eos_token_ids == std::vector<int64_t>{128001, 128008, 128009});
}

TEST_CASE("HF config: what is written reads back the same") {
  HfConfig c = parse_hf_config(kLlama32, "config.json");
  CHECK((parse_hf_config(to_json(c), "t") == c));
  c.rope_scaling.reset();
  c.bos_token_id.reset();
  c.eos_token_ids = {7};
  for (HfFamily family : {HfFamily::llama, HfFamily::qwen2, HfFamily::mistral, HfFamily::qwen3}) {
    c.family = family;
    CHECK((parse_hf_config(to_json(c), "t") == c));
  }
  c.eos_token_ids.clear();
  CHECK((parse_hf_config(to_json(c), "t") == c));
  CHECK(Json::parse(to_json(c), "t").at("architectures", "t").as_array("t")[0].as_string("t") ==
        "Qwen3ForCausalLM");
}

TEST_CASE("HF config: defaults and the newer form") {
  HfConfig c = parse_hf_config(llama_with(""), "t");
  CHECK(c.num_key_value_heads == 4);
  CHECK(c.head_dim == 16);
  CHECK(c.rope_theta == 10000);
  CHECK(c.rms_norm_eps == 1e-6);
  CHECK(c.max_position_embeddings == 2048);
  CHECK_FALSE(c.bos_token_id);
  CHECK(c.eos_token_ids.empty());
  c = parse_hf_config(
      llama_with(R"("rope_parameters":{"rope_type":"default","rope_theta":5e5},"dtype":"float16")"), "t");
  CHECK(c.rope_theta == 5e5);
  CHECK(c.dtype == "float16");
  CHECK_FALSE(c.rope_scaling);
  c = parse_hf_config(
      llama_with(R"("rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8,"low_freq_factor":1,)"
                 R"("high_freq_factor":4,"original_max_position_embeddings":8192})"),
      "t");
  CHECK(c.rope_scaling->factor == 8);
  CHECK(parse_hf_config(llama_with(R"("rope_scaling":null,"head_dim":null)"), "t").head_dim == 16);
  CHECK_FALSE(parse_hf_config(llama_with(R"("rope_scaling":{"type":"default"})"), "t").rope_scaling);
}

// What LlamaConfig, Qwen2Config and Qwen3Config of transformers 5.24 make of the same text.
TEST_CASE("HF config: what a Qwen file leaves out is what transformers takes") {
  const auto qwen_with = [](const char* family, const std::string& heads, const std::string& more) {
    std::string text = llama_with(more);
    text.replace(text.find("llama"), 5, family);
    const std::string four = "heads\":4";
    return text.replace(text.find(four), four.size(), "heads\":" + heads);
  };
  for (const char* family : {"qwen2", "qwen3"}) {
    const HfConfig c = parse_hf_config(qwen_with(family, "64", ""), "t");
    CHECK(c.num_key_value_heads == 32);
    CHECK(c.head_dim == (c.family == HfFamily::qwen3 ? 128 : 1));
    CHECK(c.max_position_embeddings == 32768);
    CHECK(c.rms_norm_eps == 1e-6);
    CHECK(c.rope_theta == 10000);
    CHECK_FALSE(c.tie_word_embeddings);
    CHECK(parse_hf_config(qwen_with(family, "4", R"("num_key_value_heads":null)"), "t").num_key_value_heads ==
          4);
    CHECK(parse_hf_config(qwen_with(family, "4", R"("num_key_value_heads":2)"), "t").num_key_value_heads ==
          2);
    CHECK_THROWS_WITH(
        parse_hf_config(qwen_with(family, "4", ""), "c.json"),
        Contains("c.json") &&
            Contains(std::string("has no num_key_value_heads, for which transformers takes 32 in ") + family +
                     ", and num_attention_heads 4 is not a multiple of that: add it"));
    // A text that is changed says them.
    HfConfig other = c;
    other.num_attention_heads = 96;
    const std::string edited = edit_hf_config(qwen_with(family, "64", ""), "t", other).json;
    CHECK((parse_hf_config(edited, "t") == other));
    CHECK(edited.find("num_key_value_heads") != std::string::npos);
  }
}

// Of transformers 5.24: the family's Config refuses the text, or the model cannot be made.
TEST_CASE("HF config: null is left out, or refused, as in transformers") {
  const auto text_of = [](std::string_view family, const std::string& more) {
    std::string text = llama_with(more + R"(,"num_key_value_heads":2)");
    return text.replace(text.find("llama"), 5, family);
  };
  const struct {
    std::string_view name, refused_in;
  } cases[] = {{"max_position_embeddings", "llama qwen2 qwen3 mistral"},
               {"rms_norm_eps", "llama qwen2 qwen3 mistral"},
               {"tie_word_embeddings", "llama qwen2 qwen3 mistral"},
               {"hidden_act", "llama qwen2 qwen3 mistral"},
               {"rope_theta", "llama qwen2 qwen3 mistral"},
               {"attention_bias", "llama qwen3"},
               {"mlp_bias", "llama"},
               {"use_sliding_window", "qwen2 qwen3"},
               {"head_dim", "qwen2 qwen3"},
               {"layer_types", "mistral"},
               {"rope_scaling", ""},
               {"rope_parameters", ""},
               {"dtype", ""},
               {"torch_dtype", ""},
               {"partial_rotary_factor", ""},
               {"is_causal", ""},
               {"attention_dropout", "mistral"},
               {"quantization_config", ""}};
  for (const auto& [name, refused_in] : cases) {
    for (const std::string_view family : {"llama", "qwen2", "qwen3", "mistral"}) {
      const std::string text = text_of(family, fmt::format("\"{}\":null", name));
      INFO(text);
      if (refused_in.find(family) == std::string_view::npos) {
        HfConfig now = parse_hf_config(text, "t");
        CHECK((now == parse_hf_config(text_of(family, "\"x\":0"), "t")));
        for (const HfFamilyRow& other : kHfFamilies) {
          now.family = other.family;  // which may not take null
          if (now.family != HfFamily::mistral) now.sliding_window.reset();
          CHECK((parse_hf_config(edit_hf_config(text, "t", now).json, "edited") == now));
        }
      } else {
        CHECK_THROWS_WITH(parse_hf_config(text, "c.json"),
                          "[c.json] " + std::string(name) +
                              " is null, which transformers does not take for left out: remove it, or write "
                              "the value that the model was trained with");
      }
    }
  }
  for (const char* rope : {R"({"rope_theta":null})", R"({"rope_type":null,"rope_theta":1e4})"}) {
    CHECK_THROWS_WITH(parse_hf_config(llama_with(std::string(R"("rope_parameters":)") + rope), "t"),
                      Contains("rope_parameters") && Contains("is null, which transformers"));
  }
  const HfConfig none = parse_hf_config(llama_with(R"("bos_token_id":null,"eos_token_id":null)"), "t");
  CHECK_FALSE(none.bos_token_id);
  CHECK(none.eos_token_ids.empty());
  const HfConfig qwen = parse_hf_config(text_of("qwen2", R"("head_dim":16)"), "t");
  CHECK_FALSE(qwen.bos_token_id);
  CHECK(qwen.eos_token_ids.empty());
}

TEST_CASE("HF config: what would compute something else is refused with a sentence") {
  auto refused = [](const std::string& more, const std::string& words) {
    CHECK_THROWS_WITH(parse_hf_config(llama_with(more), "c.json"), Contains(words) && Contains("c.json"));
  };
  refused(R"("hidden_act":"gelu")", "hidden_act is 'gelu'");
  refused(R"("attention_bias":true)", "bias to the output projection");
  refused(R"("mlp_bias":true)", "mlp_bias is true");
  refused(R"("use_sliding_window":true)", "sliding-window attention is not supported");
  refused(R"("quantization_config":{})", "quantized weights are not supported");
  refused(R"("partial_rotary_factor":0.5)", "partial_rotary_factor is 0.5");
  refused(R"("rope_scaling":{"rope_type":"llama3"})", "has no 'factor'");
  refused(R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,)"
          R"("original_max_position_embeddings":8192})",
          "high_freq_factor is 4, expected more than");
  refused(R"("rope_parameters":{"type":"yarn","rope_type":"default"})",
          "rope_type is 'default' but type is 'yarn'");
  refused(R"("rope_parameters":{"full_attention":{"rope_theta":1e6}})", "full_attention is an object");
  refused(R"("rope_parameters":{"rope_theta":1e6},"rope_theta":1e4)", "contradicts rope_theta");
  refused(R"("rope_parameters":{"rope_type":"default"},"rope_scaling":{"rope_type":"llama3","factor":8,)"
          R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192})",
          "contradicts rope_theta or rope_scaling");
  refused(R"("rope_scaling":{"rope_type":"default","rope_theta":1e6},"rope_theta":1e4)",
          "rope_scaling contradicts rope_theta");
  refused(R"("rope_scaling":{"rope_type":"default","factor":8})",
          "has 'factor', which rope type 'default' does not use: correct rope_type, or remove it");
  refused(R"("rope_parameters":{"rope_theta":1e6,"attention_factor":2})",
          "has 'attention_factor', which rope type 'default' does not use");
  refused(R"("rope_parameters":{"rope_theta":1e6,"partial_rotary_factor":0.5})",
          "partial_rotary_factor is 0.5");
  refused(R"("rope_parameters":{"rope_theta":"1e6"})", "is a string, expected a number");
  refused(R"("original_max_position_embeddings":64,"rope_scaling":{"rope_type":"llama3","factor":8,)"
          R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32})",
          "has original_max_position_embeddings 64, but rope_scaling has 32: keep only the one");
  refused(R"("is_causal":false)", "is_causal is false: attention to later tokens is not supported");
  refused(R"("attention_dropout":"0.1")", "attention_dropout");
  CHECK(parse_hf_config(llama_with(R"("attention_dropout":0.1)"), "t").attention_dropout == 0.1);
  refused(R"("layer_types":["full_attention","sliding_attention"])", "layer_types has 'sliding_attention'");
  refused(R"("num_key_value_heads":3)", "num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  refused(R"("num_key_value_heads":0)", "num_key_value_heads is 0, expected 1 to 2^31");
  refused(R"("rope_theta":0)", "rope_theta is 0, expected more than 0");
  refused(R"("rope_theta":"x")", "is a string, expected a number");
  refused(R"("tie_word_embeddings":1)", "expected true or false");
  CHECK_THROWS_WITH(parse_hf_config(R"({"model_type":"gpt2"})", "t"),
                    Contains("model_type is 'gpt2', expected one of llama, qwen2, qwen3, mistral"));
  CHECK_THROWS_WITH(parse_hf_config(R"({"model_type":"llama"})", "t"), Contains("has no 'hidden_size'"));
  CHECK_THROWS_WITH(parse_hf_config("[]", "t"), Contains("is an array, expected an object"));
  CHECK_THROWS_WITH(parse_hf_config(R"({"model_type":"llama","hidden_size":65,"num_hidden_layers":2,)"
                                    R"("num_attention_heads":4,"intermediate_size":96,"vocab_size":100})",
                                    "t"),
                    Contains("has no head_dim"));
}

TEST_CASE("HF config: one that a model was made from keeps what did not change") {
  const std::string source =
      llama_with(R"("rope_theta":500000.0,"rms_norm_eps":9.999999747378752e-06,"dtype":"bfloat16",)"
                 R"("layer_types":["full_attention","full_attention"],"my_own":{"a":[1]})");
  HfConfig now = parse_hf_config(source, "config.json");
  now.rms_norm_eps = 1e-5;  // the number that was meant
  HfConfigEdit same = edit_hf_config(source, "config.json", now);
  CHECK(same.changes.empty());
  CHECK(Json::parse(same.json, "").dump() == Json::parse(source, "").dump());

  now.dtype = "float32";
  now.num_hidden_layers = 1;
  now.rope_scaling = RopeScaling{.factor = 8};
  const HfConfigEdit edit = edit_hf_config(source, "config.json", now);
  REQUIRE(edit.changes.size() == 3);
  CHECK(edit.changes[0] == "num_hidden_layers 2 -> 1");
  CHECK_THAT(edit.changes[1], Contains("rope_scaling null -> {\"rope_type\":\"llama3\",\"factor\":8.0"));
  CHECK(edit.changes[2] == "dtype bfloat16 -> float32");
  now.rms_norm_eps = 9.999999747378752e-06;  // as it was written
  CHECK(parse_hf_config(edit.json, "edited") == now);
  const Json json = Json::parse(edit.json, "edited");
  CHECK(json.find("layer_types") == nullptr);
  CHECK(json.find("torch_dtype") == nullptr);
  CHECK(json.at("my_own", "").dump() == R"({"a":[1]})");

  // The newer form stays the newer form.
  const std::string newer = llama_with(R"("rope_parameters":{"rope_type":"default","rope_theta":10000.0})");
  HfConfig longer = parse_hf_config(newer, "config.json");
  longer.rope_theta = 1e6;
  const HfConfigEdit moved = edit_hf_config(newer, "config.json", longer);
  CHECK(parse_hf_config(moved.json, "moved") == longer);
  CHECK(Json::parse(moved.json, "moved").find("rope_theta") == nullptr);
}

TEST_CASE("HF config: what was left out reads the same when other sizes or the family changed") {
  const struct {
    std::string source;
    void (*change)(HfConfig&);
  } cases[] = {
      {llama_with(""), [](HfConfig& c) { c.family = HfFamily::qwen3; }},
      {llama_with(""), [](HfConfig& c) { c.num_attention_heads = 8; }},
      {llama_with(""), [](HfConfig& c) { c.hidden_size = 128; }},
      {llama_with(R"("num_key_value_heads":2)"), [](HfConfig& c) { c.num_attention_heads = 8; }},
      {llama_with(""), [](HfConfig& c) { c.num_attention_heads = 6, c.num_key_value_heads = 2; }},
      {llama_with(R"("head_dim":24)"), [](HfConfig& c) { c.hidden_size = 72; }},
  };
  for (const auto& [source, change] : cases) {
    HfConfig now = parse_hf_config(source, "config.json");
    change(now);
    const HfConfig read = parse_hf_config(edit_hf_config(source, "config.json", now).json, "edited");
    CHECK(read == now);
    CHECK(differences(read, now).empty());
  }
  std::string qwen = llama_with(R"("num_key_value_heads":2)");
  qwen.replace(qwen.find("llama"), 5, "qwen2");
  HfConfig now = parse_hf_config(qwen, "config.json");
  now.family = HfFamily::llama;
  const Json llama = Json::parse(edit_hf_config(qwen, "config.json", now).json, "edited");
  for (const char* name : {"bos_token_id", "eos_token_id"}) CHECK(llama.at(name, "edited").is_null());
}

TEST_CASE("HF config: both forms of rope are read where they say the same") {
  const HfConfig c = parse_hf_config(
      llama_with(
          R"("rope_theta":1e6,"rope_parameters":{"rope_theta":1e6,"type":"default","rope_type":"default"})"),
      "t");
  CHECK(c.rope_theta == 1e6);
  CHECK(!c.rope_scaling);
}

TEST_CASE("HF config: rope_theta inside rope_scaling is read and edited there") {
  const std::string source =
      llama_with(R"("rope_theta":null,"rope_scaling":{"rope_type":"llama3","rope_theta":5e5,"factor":8,)"
                 R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192})");
  const HfConfig c = parse_hf_config(source, "t");
  CHECK(c.rope_theta == 5e5);
  REQUIRE(c.rope_scaling);
  CHECK(c.rope_scaling->factor == 8);
  CHECK(parse_hf_config(llama_with(R"("rope_scaling":{"rope_theta":5e5,"attention_factor":null})"), "t")
            .rope_theta == 5e5);

  const std::string both =
      R"("rope_theta":5e5,"rope_parameters":{"rope_theta":5e5},"rope_scaling":{"type":"default"})";
  for (const std::string& before : {source, llama_with(both)}) {
    HfConfig now = parse_hf_config(before, "t");
    now.rope_theta = 1e6;
    const HfConfigEdit edit = edit_hf_config(before, "t", now);
    CHECK(edit.changes.size() == 1);
    CHECK(parse_hf_config(edit.json, "edited") == now);
    CHECK(Json::parse(edit.json, "edited").find("rope_theta") == nullptr);
  }
}

TEST_CASE("HF config: the original length may stand beside the object that has it too") {
  const std::string source =
      llama_with(R"("is_causal":true,"original_max_position_embeddings":64,"rope_scaling":{"factor":8,)"
                 R"("rope_type":"llama3","low_freq_factor":1,"high_freq_factor":4,)"
                 R"("original_max_position_embeddings":64})");
  HfConfig now = parse_hf_config(source, "t");
  REQUIRE(now.rope_scaling);
  now.rope_scaling->original_max_position_embeddings = 32;
  CHECK(parse_hf_config(edit_hf_config(source, "t", now).json, "edited") == now);
  CHECK(!parse_hf_config(llama_with(R"("original_max_position_embeddings":64)"), "t").rope_scaling);
}

TEST_CASE("HF config: what two models compute differently") {
  HfConfig a = parse_hf_config(kLlama32, "config.json"), b = a;
  b.max_position_embeddings = 9, b.dtype = "float16", b.eos_token_ids = {};
  CHECK(differences(a, b).empty());
  b.rope_theta = 10000, b.tie_word_embeddings = false, b.num_hidden_layers = 3;
  CHECK((differences(a, b) == std::vector<std::string>{"num_hidden_layers 16 and 3",
                                                       "rope_theta 500000.0 and 10000.0",
                                                       "tie_word_embeddings true and false"}));
}

TEST_CASE(
    "HF config: every member is written, read again, edited, and told where it changes what is computed") {
  const std::string source = llama_with("");
  const HfConfig plain = parse_hf_config(source, "config.json");
  // What a new member does not compile in needs a row for it.
  [[maybe_unused]] const auto& [family, hidden_size, layers, heads, kv_heads, head_dim, intermediate_size,
                                vocab_size, positions, eps, theta, scaling, is_tied, window, bos, eos, dtype,
                                attention_dropout] = plain;
  const struct {
    const char* member;
    void (*change)(HfConfig&);
    bool is_computed = true, is_edited = true;
  } rows[] = {
      {"family", [](HfConfig& c) { c.family = HfFamily::qwen3; }},
      {"hidden_size", [](HfConfig& c) { c.hidden_size = 128; }},
      {"num_hidden_layers", [](HfConfig& c) { c.num_hidden_layers = 3; }},
      {"num_attention_heads", [](HfConfig& c) { c.num_attention_heads = 8; }},
      {"num_key_value_heads", [](HfConfig& c) { c.num_key_value_heads = 2; }},
      {"head_dim", [](HfConfig& c) { c.head_dim = 32; }},
      {"intermediate_size", [](HfConfig& c) { c.intermediate_size = 128; }},
      {"vocab_size", [](HfConfig& c) { c.vocab_size = 200; }},
      {"max_position_embeddings", [](HfConfig& c) { c.max_position_embeddings = 4096; }, false},
      {"rms_norm_eps", [](HfConfig& c) { c.rms_norm_eps = 1e-5; }},
      {"rope_theta", [](HfConfig& c) { c.rope_theta = 5e5; }},
      {"rope_scaling", [](HfConfig& c) { c.rope_scaling = RopeScaling{.factor = 16}; }},
      {"tie_word_embeddings", [](HfConfig& c) { c.tie_word_embeddings = true; }},
      {"sliding_window", [](HfConfig& c) { c.family = HfFamily::mistral, c.sliding_window = 7; }, false},
      {"bos_token_id", [](HfConfig& c) { c.bos_token_id = 5; }, false, false},
      {"eos_token_ids", [](HfConfig& c) { c.eos_token_ids = {6}; }, false, false},
      {"dtype", [](HfConfig& c) { c.dtype = "bfloat16"; }, false},
      {"attention_dropout", [](HfConfig& c) { c.attention_dropout = 0.1; }, false, false},
  };
  for (const auto& [member, change, is_computed, is_edited] : rows) {
    INFO(member);
    HfConfig now = plain;
    change(now);
    CHECK_FALSE(now == plain);
    CHECK(parse_hf_config(to_json(now), "written") == now);
    CHECK((differences(plain, now).size() == 1) == is_computed);
    const HfConfigEdit edit = edit_hf_config(source, "config.json", now);
    CHECK((parse_hf_config(edit.json, "edited") == now) == is_edited);
    CHECK((edit.changes.size() == 1) == is_edited);
  }
}

}  // namespace
}  // namespace ottava
