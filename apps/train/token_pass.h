#pragma once

#include <span>
#include <vector>

#include "models/llama/llama_model.h"

namespace ottava {

/// Several texts, token by token and all at the same position, by a model that is being trained: keys and
/// values of what was read stay in caches.
class TokenPass {
 public:
  struct Size {
    int64_t texts = 1, length = 1;  ///< tokens of each, at most
  };
  /// Takes persistent memory.
  TokenPass(Arena& arena, const LlamaConfig& model, DType compute, Size size);

  /// Logits [texts, V] of what follows `tokens`, at most one of each text, which stand at `position`; texts
  /// without one get another. Blocks.
  std::vector<float> run(const StepContext& context, const LlamaModel& model, std::span<const int32_t> tokens,
                         int64_t position);

 private:
  std::vector<KeyValueCache> caches_;
  Tensor tokens_, positions_, logits_;
};

}  // namespace ottava
