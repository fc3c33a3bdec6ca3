#include "apps/step/token_pass.h"

#include "core/ops/host_values.h"

namespace ottava {

TokenPass::TokenPass(Arena& arena, const LlamaConfig& m, DType compute, Size size) {
  const Shape cache{size.texts, size.length, m.kv_heads * m.head_dim};
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    caches_.push_back({arena.persistent("keys of samples", compute, cache, MemoryCategory::activations),
                       arena.persistent("values of samples", compute, cache, MemoryCategory::activations)});
  }
  tokens_ = arena.persistent("tokens of samples", DType::i32, {size.texts, 1});
  positions_ = arena.persistent("positions of samples", DType::i32, {size.texts});
  logits_ = arena.persistent("logits of samples", DType::f32, {size.texts, m.vocab_size});
}

std::vector<float> TokenPass::run(const StepContext& c, const LlamaModel& model,
                                  std::span<const int32_t> tokens, int64_t position) {
  const bool is_real = !c.stream.is_meta();
  std::vector<int32_t> all(tokens.begin(), tokens.end());
  all.resize(tokens_.numel());
  const std::vector<int32_t> positions(positions_.numel(), static_cast<int32_t>(position));
  if (is_real) {
    copy_from_host(c.stream, all.data(), tokens_);
    copy_from_host(c.stream, positions.data(), positions_);
  }
  model.generate(c, {.tokens = tokens_, .positions = positions_, .position = position, .caches = caches_},
                 logits_);
  if (!is_real) return {};
  return host_values<float>(c.stream, logits_);
}

}  // namespace ottava
