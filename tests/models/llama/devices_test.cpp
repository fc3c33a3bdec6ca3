#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"

// The same training step on every device: a two-layer model with heads of 64, three steps, against the CPU.

using namespace ottava;
using namespace ottava::test;

namespace {

struct Curve {
  std::vector<double> losses, norms;
  std::vector<float> weights;  ///< of one projection after the last step
};

Curve train(Device device, DType compute, const LlamaConfig& model, int64_t micro_batches, Recompute recompute) {
  const int64_t sequence = 48, batch = 2;
  TrainingShape shape = tiny_shape(model, batch, sequence);
  shape.parameters.compute = compute;
  shape.micro_batches = micro_batches;
  shape.max_norm = 1;
  shape.model_options.recompute.assign(static_cast<size_t>(model.layers), recompute);
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f});
  EngineRun run(shape, device);
  run->parameters().initialise(11);
  Curve curve;
  for (int step = 1; step <= 3; ++step) {
    const int64_t count = micro_batches * batch * sequence;
    std::vector<int32_t> tokens = random_tokens(count, model.vocab_size, static_cast<uint32_t>(step));
    std::vector<int32_t> targets = random_tokens(count, model.vocab_size, static_cast<uint32_t>(step + 100));
    StepOutputs out = run->train_step({.inputs = tokens, .targets = targets},
                                      {.learning_rate = 1e-2, .optimizer_step = step, .valid_tokens = count});
    CHECK_FALSE(out.skipped);
    curve.losses.push_back(out.loss_sum / static_cast<double>(count));
    curve.norms.push_back(out.grad_norm);
  }
  curve.weights = run.values(run->parameters().shard(llama_parameters(model).blocks[1].w2).master);
  return curve;
}

LlamaConfig model_with_heads_of_64() {
  LlamaConfig model = tiny_llama();
  model.dim = 64;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 64;
  model.rope_scaling = RopeScaling{.factor = 8, .original_max_position_embeddings = 16};
  return model;
}

}  // namespace

TEST_CASE("training on any device follows the CPU's curve") {
  // FP32 devices differ by the order of sums; BF16 also by rounding of intermediate values, 2^-9 each.
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const double bound = compute == DType::f32 ? 2e-5 : 5e-3;
  LlamaConfig plain = model_with_heads_of_64(), tied = plain, qwen = plain;
  tied.tied_embeddings = true;
  qwen.qkv_bias = true;
  qwen.qk_norm = true;
  for (const LlamaConfig& model : {plain, tied, qwen}) {
    const Curve expected = train({DeviceType::cpu, 0}, compute, model, 2, Recompute::nothing);
    for (Device device : devices()) {
      INFO(to_string(device) << " " << name_of(compute) << (model.tied_embeddings ? " tied" : model.qk_norm ? " qk norm" : ""));
      Curve got = train(device, compute, model, 2, Recompute::nothing);
      for (size_t i = 0; i < expected.losses.size(); ++i) {
        CHECK(got.losses[i] == Approx(expected.losses[i]).epsilon(bound));
        CHECK(got.norms[i] == Approx(expected.norms[i]).epsilon(10 * bound));
      }
    }
  }
}

TEST_CASE("a device repeats its training bit for bit, with and without recomputation") {
  for (Device device : devices()) {
    INFO(to_string(device));
    LlamaConfig model = model_with_heads_of_64();
    Curve first = train(device, DType::bf16, model, 1, Recompute::nothing);
    for (Recompute recompute : {Recompute::nothing, Recompute::elementwise, Recompute::block}) {
      Curve again = train(device, DType::bf16, model, 1, recompute);
      CHECK(again.losses == first.losses);
      CHECK((again.weights == first.weights));
    }
  }
}
