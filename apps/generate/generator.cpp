#include "apps/generate/generator.h"

#include <numeric>

#include "core/error.h"
#include "core/ops/host_values.h"

namespace ottava {

Generator::Generator(Options options, Device device, const ForwardModel::Allow& allow)
    : options_(options),
      model_({.model = options.model, .compute = options.compute, .sequence = options.capacity}, device) {
  if (options.prompt_tokens < 1 || options.prompt_tokens > options.capacity) {
    fail<ConfigError>("generate", "a prompt of {} tokens does not fit a sequence of {}",
                      options.prompt_tokens, options.capacity);
  }
  model_.take_memory([&](Arena& arena) { build(arena); },
                     [&](const StepContext& c) {
                       run(c, options.prompt_tokens, 0);
                       if (options.capacity > options.prompt_tokens) run(c, 1, options.prompt_tokens);
                     },
                     allow);
  host_logits_.resize(options.model.vocab_size);
}

void Generator::build(Arena& arena) {
  const LlamaConfig& m = options_.model;
  caches_.clear();
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    Shape shape{1, options_.capacity, m.kv_heads * m.head_dim};
    caches_.push_back(
        {arena.persistent("key cache", options_.compute, shape, MemoryCategory::activations),
         arena.persistent("value cache", options_.compute, shape, MemoryCategory::activations)});
  }
  tokens_ = arena.persistent("tokens", DType::i32, {1, options_.prompt_tokens});
  positions_ = arena.persistent("positions", DType::i32, {options_.prompt_tokens});
  logits_ = arena.persistent("logits", DType::f32, {1, m.vocab_size});
}

void Generator::run(const StepContext& c, int64_t tokens, int64_t position) {
  // A later token is as long as a prompt of one.
  Arena::Phase phase(c.arena, tokens == options_.prompt_tokens && position == 0 ? "prompt" : "token");
  c.parameters.begin_forward_only();
  model_.model().generate(
      c,
      {.tokens = tokens_.reshape({options_.prompt_tokens}).slice(0, tokens).reshape({1, tokens}),
       .positions = positions_.slice(0, tokens),
       .position = position,
       .caches = caches_},
      logits_);
}

std::span<const float> Generator::prompt(std::span<const int32_t> tokens) {
  if (std::ssize(tokens) != options_.prompt_tokens) {
    fail<ConfigError>("generate", "the prompt has {} tokens, {} were announced", tokens.size(),
                      options_.prompt_tokens);
  }
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  copy_from_host(stream(), tokens.data(), tokens_);
  copy_from_host(stream(), positions.data(), positions_);
  run(model_.context(), options_.prompt_tokens, 0);
  length_ = options_.prompt_tokens;
  return fetch();
}

std::span<const float> Generator::next(int32_t token) {
  if (length_ >= options_.capacity)
    fail<ConfigError>("generate", "the sequence is full at {} tokens", options_.capacity);
  auto position = static_cast<int32_t>(length_);
  copy_from_host(stream(), &token, tokens_.reshape({options_.prompt_tokens}).slice(0, 1));
  copy_from_host(stream(), &position, positions_.slice(0, 1));
  run(model_.context(), 1, length_);
  ++length_;
  return fetch();
}

std::span<const float> Generator::fetch() {
  copy_to_host(stream(), logits_, host_logits_.data());
  stream().synchronize();
  return host_logits_;
}

}  // namespace ottava
