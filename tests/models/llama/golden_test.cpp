#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "apps/checkpoints/checkpoints.h"
#include "apps/generate/generator.h"
#include "core/io/safetensors.h"
#include "core/io/tensor_rectangle.h"
#include "core/ops/elementwise.h"
#include "models/llama/read_hf_config.h"
#include "parallel/checkpoint/huggingface.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"

// The whole model against Hugging Face transformers in FP32 (scripts/reference/make_llama_golden.py).

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

struct Case {
  std::string name;
  LlamaConfig model;
};

LlamaConfig base(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  LlamaConfig c;
  c.dim = 32;
  c.layers = 2;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.ffn_dim = 48;
  c.vocab_size = 80;
  c.rope_theta = 10000;
  return c;
}

std::vector<Case> cases() {
  LlamaConfig tied = base(2, 1, 64), bias = base(2, 1, 16), qk_norm = base(2, 1, 16), linear = bias;
  tied.tied_embeddings = true;
  tied.rope_scaling = RopeScaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 16};
  bias.qkv_bias = true;
  qk_norm.qk_norm = true;
  linear.rope_scaling = RopeScaling{.type = RopeScaling::Type::linear, .factor = 4};
  LlamaConfig yarn = qk_norm, mistral = base(2, 1, 32);
  mistral.mistral = true;
  mistral.sliding_window = 21;
  yarn.rope_scaling = RopeScaling{.type = RopeScaling::Type::yarn,
                                  .factor = 4,
                                  .original_max_position_embeddings = 8,
                                  .beta_fast = 0.25,
                                  .beta_slow = 0.0005};
  return {{"gqa_head16", base(4, 2, 16)}, {"tied_rope_scaling_head64", tied},
          {"head128", base(1, 1, 128)},   {"qwen2_bias", bias},
          {"qwen3_qk_norm", qk_norm},     {"linear", linear},
          {"mistral", mistral},           {"yarn", yarn}};
}

fs::path folder_of(const Case& c) { return fs::path(OTTAVA_SOURCE_DIR) / "tests/golden/llama" / c.name; }

std::vector<float> read_floats(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  INFO("tensor " << name);
  REQUIRE(entry != nullptr);
  std::vector<float> values(static_cast<size_t>(entry->numel()));
  read_rectangle(
      file, *entry,
      {.row_begin = 0, .row_end = entry->rows(), .column_begin = 0, .column_end = entry->columns()},
      FloatSpan{DType::f32, values.data()});
  return values;
}

std::vector<int32_t> read_ints(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  REQUIRE(entry != nullptr);
  std::vector<int32_t> values(static_cast<size_t>(entry->numel()));
  file.file().read_at(values.data(), values.size() * 4, file.header().data_begin + entry->begin);
  return values;
}

void load_weights(Fsdp& parameters, const SafetensorsFile& file, Stream& stream) {
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    const Tensor& master = parameters.shard(static_cast<int>(p)).master;
    std::vector<float> values;
    for (const ParameterPart& part : parameters.specs()[p].parts)
      std::ranges::copy(read_floats(file, part.hf_name), std::back_inserter(values));
    cast(stream, view_of(values.data(), master.shape), master);
    stream.synchronize();
  }
  parameters.refresh_compute_copies();
}

double relative_error(const std::vector<float>& got, const float* expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * static_cast<double>(got[i] - expected[i]);
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / size);
}

/// What a step gave. The loss is apart: beside its size gradients would not count.
struct Trained {
  double loss = 0;
  std::vector<float> gradients;
};
std::vector<float> all_gradients(EngineRun& run) {
  std::vector<float> all;
  for (size_t p = 0; p < run->parameters().specs().size(); ++p)
    std::ranges::copy(run.values(run->parameters().shard(static_cast<int>(p)).gradient),
                      std::back_inserter(all));
  return all;
}

TrainingShape shape_of(const Case& c, DType compute) {
  TrainingShape shape = tiny_shape(c.model, 2, 21);
  shape.parameters.compute = compute;
  return shape;
}

}  // namespace

TEST_CASE("loss, logits and every gradient agree with transformers in FP32, and stay near in BF16") {
  const DType compute = GENERATE(DType::f32, DType::bf16);
  // FP32: sums of at most 128 products through 2 blocks. BF16 rounds every activation and weight to 2^-9
  // relative; gradients of q and k, differences of scores that nearly cancel, are off by 0.03 to 0.066 of
  // their size then, as the model and the CPU's instructions have it.
  const double loss_bound = compute == DType::f32 ? 2e-6 : 5e-3;
  const double gradient_bound = compute == DType::f32 ? 2e-5 : 0.1;
  for (const Case& c : cases()) {
    INFO(c.name << " " << name_of(compute));
    SafetensorsFile weights((folder_of(c) / "model.safetensors").string()),
        golden((folder_of(c) / "golden.safetensors").string());
    EngineRun run(shape_of(c, compute));
    Stream host = Stream::cpu();
    load_weights(run->parameters(), weights, host);
    std::vector<int32_t> tokens = read_ints(golden, "tokens"), targets = read_ints(golden, "targets");
    const int64_t valid = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });

    StepOutputs out =
        run->train_step({.inputs = tokens, .targets = targets}, {.learning_rate = 0, .valid_tokens = valid});
    CHECK(out.loss_sum == Approx(read_floats(golden, "loss_sum")[0]).epsilon(loss_bound));
    Fsdp& parameters = run->parameters();
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      std::vector<float> gradient = run.values(parameters.shard(static_cast<int>(p)).gradient);
      size_t at = 0;
      for (const ParameterPart& part : parameters.specs()[p].parts) {
        std::vector<float> expected = read_floats(golden, "grad." + part.hf_name);
        std::vector<float> got(gradient.begin() + static_cast<int64_t>(at),
                               gradient.begin() + static_cast<int64_t>(at + expected.size()));
        at += expected.size();
        INFO(part.hf_name);
        CHECK(relative_error(got, expected.data()) < gradient_bound);
      }
      CHECK(at == gradient.size());
    }
  }
}

TEST_CASE(
    "a Hugging Face folder gives the model and its weights, and the first step has transformers' loss") {
  for (const Case& c : cases()) {
    INFO(c.name);
    SafetensorsFile golden((folder_of(c) / "golden.safetensors").string());
    const LlamaConfig model = read_hf_config(folder_of(c).string());
    EngineRun run(tiny_shape(model, 2, 21));
    checkpoint::PatientRanks alone;
    checkpoint::load_huggingface(folder_of(c).string(), trained_parameters(run->parameters(), run.stream()),
                                 alone);
    run->parameters().refresh_compute_copies();
    std::vector<int32_t> tokens = read_ints(golden, "tokens"), targets = read_ints(golden, "targets");
    StepOutputs out =
        run->train_step({.inputs = tokens, .targets = targets}, {.learning_rate = 0, .valid_tokens = 42});
    CHECK(out.loss_sum == Approx(read_floats(golden, "loss_sum")[0]).epsilon(2e-6));
  }
}

TEST_CASE("generation with a key/value cache gives transformers' logits, from a prompt and token by token") {
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const int64_t prompt = GENERATE(1, 9);
  const Device device = GENERATE(from_range(test::devices()));
  for (const Case& c : cases()) {
    SafetensorsFile weights((folder_of(c) / "model.safetensors").string()),
        golden((folder_of(c) / "golden.safetensors").string());
    std::vector<int32_t> tokens = read_ints(golden, "tokens");
    std::vector<float> expected = read_floats(golden, "logits");
    const int64_t length = 21, vocab = c.model.vocab_size;
    INFO(c.name << " " << name_of(compute) << " on " << to_string(device) << ", prompt of " << prompt);
    Generator generator({.model = c.model, .compute = compute, .prompt_lengths = {9, 1}, .capacity = length},
                        device);
    load_weights(generator.parameters(), weights, generator.stream());
    for (int round = 0; round < 2; ++round) {  // a new prompt, of another length, forgets the old one
      const int32_t* sequence = tokens.data() + round * length;
      const int64_t given = round == 0 ? prompt : 10 - prompt;
      std::span<const float> logits = generator.prompt({sequence, static_cast<size_t>(given)});
      for (int64_t t = given - 1;; ++t) {
        const float* row = expected.data() + (round * length + t) * vocab;
        // In f32 both sides round some twenty products and norms in a row, each by up to 1e-6: instruction
        // sets come to 4e-6 to 6e-6.
        CHECK(relative_error({logits.begin(), logits.end()}, row) < (compute == DType::f32 ? 2e-5 : 0.15));
        if (t + 1 == length) break;
        logits = generator.next(sequence[t + 1]);
      }
    }
  }
}

TEST_CASE("recomputation changes no bit of any gradient") {
  const DType compute = GENERATE(DType::f32, DType::bf16);
  for (const Case& c : cases()) {
    INFO(c.name);
    std::vector<int32_t> tokens = random_tokens(42, 80, 1), targets = random_tokens(42, 80, 2);
    std::vector<std::vector<float>> expected;
    using enum Recompute;
    const std::vector<Recompute> of_blocks[] = {{nothing, nothing},
                                                {nothing, elementwise},
                                                {elementwise, elementwise},
                                                {elementwise, all_but_attention},
                                                {block, block}};
    for (const std::vector<Recompute>& recompute : of_blocks) {
      TrainingShape shape = shape_of(c, compute);
      shape.model_options.recompute = recompute;
      EngineRun run(shape);
      run->parameters().initialise(5);
      StepOutputs out =
          run->train_step({.inputs = tokens, .targets = targets}, {.learning_rate = 0, .valid_tokens = 42});
      std::vector<std::vector<float>> got{{static_cast<float>(out.loss_sum)}};
      for (size_t p = 0; p < run->parameters().specs().size(); ++p)
        got.push_back(run.values(run->parameters().shard(static_cast<int>(p)).gradient));
      if (expected.empty()) expected = got;
      CHECK((got == expected));
    }
  }
}

TEST_CASE("micro-batches add up to the whole batch") {
  LlamaConfig model = tiny_llama();
  std::vector<int32_t> tokens = random_tokens(4 * 24, model.vocab_size, 3),
                       targets = random_tokens(4 * 24, model.vocab_size, 4);
  auto trained = [&](int64_t batch, int64_t micro_batches) {
    TrainingShape shape = tiny_shape(model, batch, 24);
    shape.micro_batches = micro_batches;
    EngineRun run(shape);
    run->parameters().initialise(5);
    StepOutputs out =
        run->train_step({.inputs = tokens, .targets = targets}, {.learning_rate = 0, .valid_tokens = 4 * 24});
    return Trained{out.loss_sum, all_gradients(run)};
  };
  const Trained whole = trained(4, 1);
  for (const Trained& parts : {trained(1, 4), trained(2, 2)}) {
    CHECK(parts.loss == Approx(whole.loss).epsilon(1e-6));
    CHECK(relative_error(parts.gradients, whole.gradients.data()) < 1e-5);
  }
}

TEST_CASE("how many tokens' logits exist at once changes only the order of sums") {
  LlamaConfig model = tiny_llama();
  std::vector<int32_t> tokens = random_tokens(2 * 24, model.vocab_size, 3),
                       targets = random_tokens(2 * 24, model.vocab_size, 4);
  auto trained = [&](int64_t chunk) {
    TrainingShape shape = tiny_shape(model, 2, 24);
    shape.model_options.loss_chunk_rows = chunk;
    EngineRun run(shape);
    run->parameters().initialise(5);
    StepOutputs out =
        run->train_step({.inputs = tokens, .targets = targets}, {.learning_rate = 0, .valid_tokens = 2 * 24});
    return Trained{out.loss_sum, all_gradients(run)};
  };
  const Trained whole = trained(48);
  for (int64_t chunk : {7, 16, 24, 4096}) {
    INFO(chunk << " tokens");
    const Trained parts = trained(chunk);
    CHECK(std::abs(parts.loss - whole.loss) <= 48 * 0x1p-24 * std::abs(whole.loss));
    CHECK(relative_error(parts.gradients, whole.gradients.data()) < 1e-5);
  }
}

TEST_CASE("the first loss is ln V + 0.5") {
  LlamaConfig model = llama_flavor("debugmodel");
  model.layers = 2;
  std::vector<int32_t> tokens = random_tokens(256, 2048, 1), targets = random_tokens(256, 2048, 2);
  EngineRun run(tiny_shape(model, 1, 256));
  run->parameters().initialise(1);
  StepOutputs out =
      run->train_step({.inputs = tokens, .targets = targets}, {.learning_rate = 0, .valid_tokens = 256});
  CHECK(std::abs(out.loss_sum / 256 - (std::log(2048.0) + 0.5)) < 0.1);
}
