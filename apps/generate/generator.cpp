#include "apps/generate/generator.h"

#include <fmt/core.h>

#include <numeric>

#include "core/contains.h"
#include "core/error.h"
#include "core/ops/host_values.h"

namespace ottava {

Generator::Generator(Options options, Device device, const ForwardModel::Allow& allow)
    : options_(options),
      model_({.model = options.model, .compute = options.compute, .sequence = options.capacity}, device) {
  // Memory is planned for each length once.
  std::vector<int64_t>& lengths = options_.prompt_lengths;
  std::ranges::sort(lengths);
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  for (const int64_t length : lengths) {
    if (length < 1 || length > options.capacity)
      fail<ConfigError>("generate", "a prompt of {} tokens does not fit a sequence of {}", length,
                        options.capacity);
  }
  model_.take_memory([&](Arena& arena) { build(arena); },
                     [&](const StepContext& c) {
                       for (const int64_t length : lengths) run(c, length, 0);
                       if (options.capacity > lengths.back()) run(c, 1, lengths.back());
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
  tokens_ = arena.persistent("tokens", DType::i32, {options_.longest_prompt()});
  positions_ = arena.persistent("positions", DType::i32, {options_.longest_prompt()});
  logits_ = arena.persistent("logits", DType::f32, {1, m.vocab_size});
}

void Generator::run(const StepContext& c, int64_t tokens, int64_t position) {
  Arena::Phase phase(c.arena, position == 0 ? fmt::format("prompt of {}", tokens) : "token");
  c.parameters.begin_forward_only();
  model_.model().generate(c,
                          {.tokens = tokens_.slice(0, tokens).reshape({1, tokens}),
                           .positions = positions_.slice(0, tokens),
                           .position = position,
                           .caches = caches_},
                          logits_);
}

std::span<const float> Generator::prompt(std::span<const int32_t> tokens) {
  const auto length = std::ssize(tokens);
  if (!contains(options_.prompt_lengths, length))
    fail<ConfigError>("generate", "the prompt has {} tokens, which was not announced", length);
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  copy_from_host(stream(), tokens.data(), tokens_.slice(0, length));
  copy_from_host(stream(), positions.data(), positions_.slice(0, length));
  run(model_.context(), length, 0);
  length_ = length;
  return fetch();
}

std::span<const float> Generator::next(int32_t token) {
  if (length_ >= options_.capacity)
    fail<ConfigError>("generate", "the sequence is full at {} tokens", options_.capacity);
  auto position = static_cast<int32_t>(length_);
  copy_from_host(stream(), &token, tokens_.slice(0, 1));
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
