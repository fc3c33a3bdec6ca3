#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/engine_run.h"

// The gradients of the whole model against finite differences of its own loss, in FP32.

using namespace ottava;
using namespace ottava::test;

namespace {

struct Direction {
  int parameter;
  std::vector<float> unit;
};

/// Half the gradient's own direction, half chance: a derivative far above the loss's rounding that still sees
/// errors across the gradient.
std::vector<float> direction(const std::vector<float>& gradient, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> noise(gradient.size());
  double size = 0, noise_size = 0;
  for (size_t i = 0; i < noise.size(); ++i) {
    noise[i] = normal(random);
    size += static_cast<double>(gradient[i]) * gradient[i];
    noise_size += static_cast<double>(noise[i]) * noise[i];
  }
  double length = 0;
  for (size_t i = 0; i < noise.size(); ++i) {
    noise[i] = static_cast<float>(gradient[i] / std::sqrt(size) + noise[i] / std::sqrt(noise_size));
    length += static_cast<double>(noise[i]) * noise[i];
  }
  for (float& x : noise) x = static_cast<float>(x / std::sqrt(length));
  return noise;
}

}  // namespace

TEST_CASE("the gradient of every parameter is the derivative of the loss") {
  LlamaConfig model = tiny_llama();
  const std::string variant =
      GENERATE("plain", "tied, scaled rope", "bias", "qk norm", "documents", "z-loss");
  INFO(variant);
  if (variant == "tied, scaled rope") {
    model.tied_embeddings = true;
    model.rope_scaling = RopeScaling{
        .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 16};
  }
  model.qkv_bias = variant == "bias";
  model.qk_norm = variant == "qk norm";
  const int64_t batch = 2, sequence = 20, count = batch * sequence;
  TrainingShape shape = tiny_shape(model, batch, sequence);
  shape.validation_batch = batch;
  shape.validation_sequence = sequence;
  shape.block_causal = variant == "documents";
  if (variant == "z-loss") shape.model_options.z_loss_weight = 0.05f;
  std::vector<int32_t> inputs = random_tokens(count, model.vocab_size, 1),
                       targets = random_tokens(count, model.vocab_size, 2), starts, positions;
  targets[3] = targets[27] = -100;
  for (int32_t i = 0; shape.block_causal && i < count; ++i) {
    const int32_t t = i % static_cast<int32_t>(sequence), start = t < 7 ? 0 : t < 12 ? 7 : 12;
    starts.push_back(start);
    positions.push_back(t - start);
  }
  const HostTokens tokens{inputs, targets, starts, positions};
  EngineRun run(shape);
  Fsdp& parameters = run->parameters();
  parameters.initialise(3);
  // Gradients are those of the sum.
  auto step = [&] {
    return run->train_step(tokens, {.learning_rate = 0, .loss_scale = 1, .valid_tokens = 1});
  };
  CHECK((step().z_loss_sum > 0) == (variant == "z-loss"));

  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    INFO(parameters.specs()[p].name);
    const ParameterShard& shard = parameters.shard(static_cast<int>(p));
    const std::vector<float> gradient = run.values(shard.gradient), weights = run.values(shard.master);
    double size = 0;
    for (float g : gradient) size += static_cast<double>(g) * g;
    size = std::sqrt(size);
    REQUIRE(size > 0);
    for (uint32_t seed : {1u, 2u, 3u}) {
      const std::vector<float> unit = direction(gradient, seed);
      double expected = 0;
      for (size_t i = 0; i < unit.size(); ++i) expected += static_cast<double>(unit[i]) * gradient[i];
      auto loss_at = [&](double h) {
        for (size_t i = 0; i < unit.size(); ++i)
          shard.master.as<float>()[i] = static_cast<float>(weights[i] + h * unit[i]);
        parameters.refresh_compute_copies();
        parameters.weights_changed();
        run->validate(tokens);
        const std::vector<float> losses = run->token_losses();
        const double loss = std::accumulate(losses.begin(), losses.end(), 0.0);
        return variant == "z-loss" ? loss + step().z_loss_sum : loss;
      };
      // Steps that move the loss by about a hundredth of itself, but the parameter by little where its
      // gradient is large, and Richardson's extrapolation of two of them.
      const double h = std::min(0.02 * 200 / size, std::clamp(0.05 / size, 0.05, 0.5));
      auto central = [&](double by) { return (loss_at(by) - loss_at(-by)) / (2 * by); };
      const double got = (4 * central(h / 2) - central(h)) / 3;
      loss_at(0);
      // What the rounding of the losses, whose sum is one of doubles, makes of the difference.
      constexpr double kRounding = 5e-6;
      CHECK(got == Approx(expected).epsilon(5e-3).margin(4 * kRounding / h));
    }
  }
}

TEST_CASE("documents kept apart by block_causal are trained on as if each were alone") {
  const LlamaConfig model = tiny_llama();
  const std::vector<int32_t> begins{0, 7, 17, 24};
  const std::vector<int32_t> inputs = random_tokens(24, model.vocab_size, 5),
                             targets = random_tokens(24, model.vocab_size, 6);
  std::vector<int32_t> starts(24), positions(24);
  for (size_t d = 0; d < 3; ++d) {
    for (int32_t t = begins[d]; t < begins[d + 1]; ++t) {
      starts[static_cast<size_t>(t)] = begins[d];
      positions[static_cast<size_t>(t)] = t - begins[d];
    }
  }
  auto train = [&](size_t first, size_t count, bool block_causal) {
    TrainingShape shape = tiny_shape(model, 1, static_cast<int64_t>(count));
    shape.block_causal = block_causal;
    EngineRun run(shape);
    run->parameters().initialise(3);
    auto part = [&](const std::vector<int32_t>& v) { return std::span(v).subspan(first, count); };
    HostTokens tokens{part(inputs), part(targets), {}, {}};
    if (block_causal) tokens.document_start = starts, tokens.positions = positions;
    std::vector<double> out{run->train_step(tokens, {.learning_rate = 0, .valid_tokens = 24}).loss_sum};
    for (size_t p = 0; p < run->parameters().specs().size(); ++p) {
      for (float g : run.values(run->parameters().shard(static_cast<int>(p)).gradient)) out.push_back(g);
    }
    return out;
  };
  const std::vector<double> packed = train(0, 24, true), mixed = train(0, 24, false);
  std::vector<double> apart(packed.size(), 0.0);
  for (size_t d = 0; d < 3; ++d) {
    const std::vector<double> one =
        train(static_cast<size_t>(begins[d]), static_cast<size_t>(begins[d + 1] - begins[d]), false);
    for (size_t i = 0; i < one.size(); ++i) apart[i] += one[i];
  }
  auto distance = [&](const std::vector<double>& a) {
    double difference = 0, size = 0;
    for (size_t i = 1; i < a.size(); ++i)
      difference += std::pow(a[i] - apart[i], 2), size += apart[i] * apart[i];
    return std::sqrt(difference / size);
  };
  CHECK(packed[0] == Approx(apart[0]).epsilon(1e-6));
  CHECK(distance(packed) < 1e-5);
  CHECK(distance(mixed) > 1e-2);
}

TEST_CASE("the memory plan is what is taken, and phases replay in any order") {
  const LlamaConfig model = tiny_llama();
  TrainingShape shape = tiny_shape(model, 2, 16);
  shape.micro_batches = 2;
  shape.validation_batch = 3;
  shape.validation_sequence = 16;
  EngineRun run(shape);
  CHECK(run.arena().block_bytes() == run.plan().memory.total_bytes());
  CHECK(run.plan().memory.phases.size() == 2);
  run->parameters().initialise(1);
  const std::vector<int32_t> inputs = random_tokens(64, model.vocab_size, 1),
                             targets = random_tokens(64, model.vocab_size, 2);
  const HostTokens all{inputs, targets, {}, {}},
      some{std::span(inputs).first(48), std::span(targets).first(48), {}, {}};
  const double before = run->validate(some);
  CHECK(run->validate(some) == before);
  const StepInputs still{.learning_rate = 0, .valid_tokens = 64};
  const double loss = run->train_step(all, still).loss_sum;
  CHECK(run->validate(some) == before);
  CHECK(run->train_step(all, still).loss_sum == loss);
}
