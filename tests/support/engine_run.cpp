#include "tests/support/engine_run.h"

#include <random>

#include "core/ops/elementwise.h"

namespace ottava::test {

std::vector<float> EngineRun::values(const Tensor& tensor) {
  std::vector<float> host(static_cast<size_t>(tensor.numel()));
  cast(stream_, tensor, view_of(host.data(), tensor.shape));
  stream_.synchronize();
  return host;
}

LlamaConfig tiny_llama() {
  return {.dim = 48, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn_dim = 80, .vocab_size = 96};
}

TrainingShape tiny_shape(const LlamaConfig& model, int64_t batch, int64_t sequence) {
  TrainingShape shape;
  shape.model = model;
  shape.model_options = {.sequence = sequence, .loss_chunk_rows = 16, .loss_parallel = true, .recompute = {}};
  shape.parameters.compute = DType::f32;
  shape.batch = batch;
  shape.sequence = sequence;
  shape.max_norm = 0;
  return shape;
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return tokens;
}

}  // namespace ottava::test
