#include <cmath>
#include <filesystem>
#include <fstream>

#include "apps/generate/generator.h"
#include "apps/generate/saved_model.h"
#include "apps/train/prompt_samples.h"
#include "core/io/file.h"
#include "core/log.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/message_of.h"

// A Hugging Face folder in, a Hugging Face folder out: the same model but for its weights.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// A folder as people publish it: weights, tokenizer, template, generation settings, a licence, and members
/// of config.json that mean nothing to us.
std::string publish(TinyTraining& tiny, const std::string& name, const Overrides& family) {
  finish(tiny, "pretrained " + name, family + kSaving + Overrides{"--training.steps", "1"});
  const std::string trained = tiny / ("pretrained " + name + "/checkpoint/step-1"), folder = tiny / name;
  fs::create_directories(folder + "/original");
  for (const char* file : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(trained + "/" + file, folder + "/" + file);
  std::string config = read_file(trained + "/config.json");
  auto replace = [&](std::string_view what, std::string_view with) {
    const size_t at = config.find(what);
    REQUIRE(at != std::string::npos);
    config.replace(at, what.size(), with);
  };
  replace("\"max_position_embeddings\": 65536", "\"max_position_embeddings\": 4096");
  if (name == "mistral") {
    replace("LlamaForCausalLM", "MistralForCausalLM");
    replace("\"model_type\": \"llama\"", "\"model_type\": \"mistral\",\n  \"sliding_window\": 4095");
  }
  replace("\"torch_dtype\": \"float32\"",
          "\"torch_dtype\": \"bfloat16\",\n  \"initializer_range\": 0.02,\n  \"transformers_version\": "
          "\"4.51.0\"");
  std::ofstream(folder + "/config.json") << config;
  std::ofstream(folder + "/generation_config.json") << R"({"do_sample": true, "eos_token_id": [1, 5]})";
  std::ofstream(folder + "/special_tokens_map.json") << R"({"eos_token": "<|end_of_text|>"})";
  std::ofstream(folder + "/chat_template.jinja") << "{% for m in messages %}{{ m.content }}{% endfor %}";
  std::ofstream(folder + "/LICENSE") << "do as you please\n";
  std::ofstream(folder + "/pytorch_model.bin") << "the same weights in another form";
  std::ofstream(folder + "/original/params.json") << "{}";
  return folder;
}

/// A configuration of the model in `folder` and of nothing else of the tiny model's.
Config fine_tuning(TinyTraining& tiny, const std::string& run, const std::string& folder,
                   const Overrides& more = {}) {
  Config c = tiny.config(run, kSaving + more);
  const ModelConfig::Initial initial = c.model.initial;
  c.model = {};
  c.model.flavor = "hf";
  c.model.hf_assets_path = folder;
  c.model.initial = initial;
  c.training.steps = 2;
  return c;
}

struct Solo {
  RankGroups ranks = solo_rank_groups();
  Trainer trainer;
  explicit Solo(const Config& c)
      : trainer(resolve_experiment(c, load_tokenizer(c), 1), ranks, {DeviceType::cpu, 0}, nullptr) {}
};

}  // namespace

TEST_CASE("fine-tuning keeps every file of a Hugging Face folder but its weights") {
  TinyTraining tiny;
  const struct {
    const char* name;
    Overrides family;
  } kinds[] = {{"llama", {}},
               {"qwen2", {"--model.qkv_bias", "true"}},
               {"qwen3", {"--model.qk_norm", "true"}},
               {"mistral", {"--model.head_dim", "32"}}};
  for (const auto& kind : kinds) {
    INFO(kind.name);
    const std::string folder = publish(tiny, kind.name, kind.family);
    const std::string run = std::string("tuned ") + kind.name;
    CHECK(model_title(fine_tuning(tiny, run, folder).model) == "from config.json");
    Solo solo(fine_tuning(tiny, run, folder));
    CHECK(solo.trainer.run() == Trainer::End::completed);
    const std::string out = tiny / (run + "/checkpoint/step-2");
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                             "special_tokens_map.json", "chat_template.jinja", "LICENSE"}) {
      INFO(file);
      CHECK(read_file(out + "/" + file) == read_file(folder + "/" + file));
    }
    CHECK_FALSE(fs::exists(out + "/pytorch_model.bin"));
    CHECK_FALSE(fs::exists(out + "/original"));

    // Masters are stored in f32; nothing else of config.json moves, the length of 4096 least of all.
    const Json before = Json::parse(read_file(folder + "/config.json"), "before"),
               after = Json::parse(read_file(out + "/config.json"), "after");
    REQUIRE(after.as_object("").size() == before.as_object("").size());
    for (const auto& [name, value] : before.as_object("")) {
      INFO(name);
      const std::string expected = name == "torch_dtype" ? "\"float32\"" : value.dump();
      CHECK(after.at(name, "after").dump() == expected);
    }
  }
}

TEST_CASE("flavor hf begins with the folder's weights unless random ones are asked for") {
  TinyTraining tiny;
  const std::string folder = publish(tiny, "model", {});
  Solo loaded(fine_tuning(tiny, "loaded", folder));
  Config named = fine_tuning(tiny, "named", folder);
  named.checkpoint.initial_load_path = folder;
  Solo by_path(named);
  CHECK((everything_of(loaded.trainer) == everything_of(by_path.trainer)));

  Solo random(fine_tuning(tiny, "random", folder, {"--model.initial", "random"}));
  CHECK_FALSE((everything_of(random.trainer).tensors[0] == everything_of(loaded.trainer).tensors[0]));

  fs::remove(folder + "/model.safetensors");
  CHECK_THAT(message_of([&] { Solo none(fine_tuning(tiny, "none", folder)); }),
             Contains("flavor hf starts from the weights in " + folder + ", which has none") &&
                 Contains("model.initial to random"));
  Solo still(fine_tuning(tiny, "still", folder, {"--model.initial", "random"}));
  CHECK((everything_of(still.trainer).tensors == everything_of(random.trainer).tensors));
}

TEST_CASE("a run does not go on as another model of the same shape") {
  TinyTraining tiny;
  finish(tiny, "run", kSaving);
  const std::string message = message_of([&] {
    tiny.start("run", kSaving + Overrides{"--model.rope_theta", "10000", "--model.norm_eps", "1e-6"});
  });
  CHECK_THAT(message, Contains("step-8 has another model than this configuration: rms_norm_eps 1e-05 and "
                               "1e-06, rope_theta 500000.0 and 10000.0"));
}

TEST_CASE("answers are scored within the positions that config.json gives") {
  TinyTraining tiny;
  Config c = fine_tuning(tiny, "run", publish(tiny, "short", {}));
  c.validation.seq_len = 8192;
  const auto resolve = [&] { resolve_experiment(c, load_tokenizer(c), 1); };
  CHECK(message_of(resolve) == "no error");
  c.evaluation.enable = true;
  c.evaluation.tasks = {{.name = "questions", .path = {"questions.jsonl"}}};
  CHECK_THAT(message_of(resolve),
             Contains("sequences of 8192 tokens are longer than max_position_embeddings 4096") &&
                 Contains("lower validation.seq_len"));
}

TEST_CASE("no pass is longer than a Mistral's window, whatever else is set") {
  TinyTraining tiny;
  const std::string folder = publish(tiny, "mistral", {});
  Config c = fine_tuning(tiny, "run", folder);
  c.model.max_seq_len = 8192;
  const auto resolve = [&] { resolve_experiment(c, load_tokenizer(c), 1); };
  CHECK(message_of(resolve) == "no error");
  c.training.seq_len = 4096;
  CHECK_THAT(
      message_of(resolve),
      Contains("[model] sequences of 4096 tokens are longer than sliding_window 4095 in config.json") &&
          Contains("lower training.seq_len to that"));
  const SavedModel model = open_saved_model("test", folder);
  CHECK(model.positions.most == 4095);
  CHECK(model.positions.limit == "sliding_window");
  const auto generator_of = [&](int64_t tokens) {
    Generator({.model = model.config, .compute = DType::f32, .capacity = tokens}, {DeviceType::cpu, 0});
  };
  CHECK(message_of([&] { generator_of(4095); }) == "no error");
  CHECK(
      message_of([&] { generator_of(4096); }) ==
      "[model] sequences of 4096 tokens are longer than sliding_window 4095 in the model's config.json, and "
      "attention within a window is not supported: use at most 4095 tokens");
}

TEST_CASE("prompts are within a Mistral's window by their tokens, not by their bytes") {
  TinyTraining tiny;
  Config c = fine_tuning(tiny, "run", publish(tiny, "mistral", {}));
  c.evaluation.enable = true;
  std::string prompt = "the";
  while (prompt.size() < 4095) prompt += " the";
  c.evaluation.prompts = {prompt};
  const auto begin = [&] { Solo solo(c); };
  c.evaluation.max_new_tokens = 0;
  const int64_t length = std::ssize(encode_prompts(resolve_experiment(c, load_tokenizer(c), 1)).at(0));
  REQUIRE(length < 2048);
  c.evaluation.max_new_tokens = 4095 - length;
  CHECK(message_of(begin) == "no error");
  c.evaluation.max_new_tokens += 1;
  CHECK(
      message_of(begin) ==
      fmt::format("[evaluation] prompt 1 of {} tokens and max_new_tokens {} make 4096 tokens, but the model "
                  "supports 4095 (sliding_window in config.json): lower evaluation.max_new_tokens, or "
                  "shorten that prompt of evaluation.prompts",
                  length, 4096 - length));
}

TEST_CASE("a run whose checkpoints it could not load itself does not begin") {
  TinyTraining tiny;
  const std::string folder = publish(tiny, "odd", {});
  std::string config = read_file(folder + "/config.json");
  const std::string usual = "\"original_max_position_embeddings\": 8192";
  REQUIRE(has(config, usual));
  config.replace(config.find(usual), usual.size(), "\"original_max_position_embeddings\": 0.5");
  std::ofstream(folder + "/config.json") << config;
  Config c = fine_tuning(tiny, "none", folder);
  c.model.rope_scaling.factor = 4;  // so that the length is written anew, as an integer
  CHECK_THAT(message_of([&] { Solo none(c); }),
             Contains("[model] this run could not load the checkpoints that it would save: ") &&
                 Contains("original_max_position_embeddings is 0, expected more than 0"));
}

TEST_CASE("a run goes on with frequencies that are made for more positions than a sequence may have") {
  TinyTraining tiny;
  const Overrides farthest =
      kSaving + Overrides{"--model.rope_scaling.factor", "65536",
                          "--model.rope_scaling.original_max_position_embeddings", "1073741824"};
  finish(tiny, "run", farthest);
  finish(tiny, "run", farthest + Overrides{"--training.steps", "9"}, 8);
  CHECK_THAT(read_file(tiny / "run/checkpoint/step-9/config.json"),
             Contains("\"max_position_embeddings\": 1073741824"));
}

TEST_CASE("a small model with tied embeddings begins where others do") {
  TinyTraining tiny;
  for (const char* dim : {"32", "128", "256"}) {
    INFO("dim " << dim);
    const std::string run = std::string("tied ") + dim;
    finish(tiny, run,
           {"--model.dim", dim, "--model.tie_embeddings", "true", "--training.steps", "1",
            "--lr_scheduler.warmup_steps", "0"});
    const double loss = logged(tiny / run, "loss_metrics/global_avg_loss").at(0);
    CHECK(loss > std::log(2256) - 0.1);
    CHECK(loss < std::log(2256) + 0.6);
  }
}

TEST_CASE("who prompts a model begins texts as the documents began that it was trained on") {
  TinyTraining tiny;
  const std::string own = tiny / "tokenizer", config = own + "/tokenizer_config.json";
  fs::copy(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256", own);
  const bool add_bos = GENERATE(false, true), files_say = GENERATE(false, true);
  const Json shipped = Json::parse(read_file(config), "shipped");
  std::string edited = read_file(config);
  if (!files_say) edited.insert(edited.find('{') + 1, "\"add_bos_token\": false,");
  std::ofstream(config) << edited;
  const std::string wanted = add_bos ? "true" : "false";
  const Overrides all = kSaving + Overrides{"--model.hf_assets_path", own,      "--training.add_bos",  wanted,
                                            "--training.steps",       "1",      "--evaluation.enable", "true",
                                            "--evaluation.prompts",   "[a cat]"};
  TinyTraining::Run run = tiny.start("run", all);
  CHECK(run->run() == Trainer::End::completed);

  const std::string saved = tiny / "run/checkpoint/step-1";
  const auto tokenizer = open_saved_model("test", saved).tokenizer;
  CHECK(tokenizer->adds_bos() == add_bos);
  // transformers goes by this file.
  CHECK(Tokenizer::parse(read_file(saved + "/tokenizer.json"), "", "saved")->adds_bos() == add_bos);
  CHECK(encode_prompts(run->experiment()).at(0) == tokenizer->encode("a cat", {.add_bos = add_bos}));
  CHECK((encode_prompts(run->experiment()).at(0).front() == *tokenizer->bos_id()) == add_bos);
  const Json now = Json::parse(read_file(saved + "/tokenizer_config.json"), "saved");
  for (const auto& [name, value] : shipped.as_object("shipped"))
    CHECK(now.at(name, "saved").dump() == value.dump());
  if (add_bos == files_say) CHECK(read_file(saved + "/tokenizer_config.json") == edited);

  // Bare ids are what they are, and the template is what counts, as in transformers 5.
  Experiment bare = run->experiment();
  bare.config.training.format = "tokens_u16";
  CHECK(texts_begin_with_bos(bare));
}

TEST_CASE("a tokenizer without a class gets one beside a Qwen3 model, for which transformers takes another") {
  TinyTraining tiny;
  const std::string own = tiny / "tokenizer";
  fs::create_directory(own);
  fs::copy_file(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256/tokenizer.json", own + "/tokenizer.json");
  const auto config_beside = [&](const std::string& run, const char* qk_norm) -> std::string {
    finish(tiny, run,
           kSaving +
               Overrides{"--model.hf_assets_path", own, "--model.qk_norm", qk_norm, "--training.steps", "1"});
    const std::string saved = tiny / (run + "/checkpoint/step-1/tokenizer_config.json");
    return fs::exists(saved) ? read_file(saved) : "";
  };
  const std::string expected = "\"tokenizer_class\": \"PreTrainedTokenizerFast\"";
  CHECK_THAT(config_beside("qwen3", "true"), Contains(expected));
  CHECK_THAT(config_beside("llama", "false"), !Contains("tokenizer_class"));

  std::ofstream(own + "/tokenizer_config.json") << R"({"tokenizer_class":"GPT2Tokenizer"})";
  CHECK_THAT(config_beside("named", "true"), Contains("GPT2Tokenizer"));
}
