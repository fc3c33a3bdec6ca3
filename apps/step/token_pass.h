#pragma once

#include <span>
#include <vector>

#include "models/llama/llama_model.h"

namespace ottava {

/// Runs a model in training over several texts token by token, all at the same position. Keys and values of
/// what was read stay in caches.
class TokenPass {
 public:
  struct Size {
    int64_t texts = 1, length = 1;  ///< tokens of each, at most
  };
  /// Takes persistent memory.
  TokenPass(Arena& arena, const LlamaConfig& model, DType compute, Size size);

  /// Logits [texts, V] of what follows `tokens`, at most one per text, all at `position`; texts without one
  /// get some other token. Blocks.
  std::vector<float> run(const StepContext& context, const LlamaModel& model, std::span<const int32_t> tokens,
                         int64_t position);

 private:
  std::vector<KeyValueCache> caches_;
  Tensor tokens_, positions_, logits_;
};

}  // namespace ottava
