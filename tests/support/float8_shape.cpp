#include "tests/support/float8_shape.h"

#include "fp8/recipe.h"
#include "tests/support/engine_run.h"

namespace ottava::test {

TrainingShape in_float8(TrainingShape shape, const Float8Config& config, int tp,
                        std::optional<int> compute_capability) {
  const LlamaParameters table = llama_parameters(shape.model);
  shape.parameters.compute = DType::bf16;
  fp8::PolicyInputs inputs = llama_policy_inputs(table, tp, shape.sequence);
  if (compute_capability) inputs.hardware = fp8::recipes_of_compute_capability(*compute_capability);
  shape.float8_policy = fp8::decide_policy(config, inputs);
  shape.float8 = llama_float8(table, shape.float8_policy, config, tp);
  shape.parameters.float8 = shape.float8.weights;
  shape.parameters.float8_gradients = config.enable_float8_gradient_all_to_all;
  return shape;
}

TrainingShape float8_step() {
  const LlamaConfig model{
      .dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn_dim = 192, .vocab_size = 320};
  TrainingShape shape = tiny_shape(model, 8, 32);
  shape.model_options.loss_chunk_rows = 32;
  shape.max_norm = 0.2f;
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  shape.parameters.compute = DType::bf16;
  return shape;
}

TrainingShape wide_float8_step() {
  TrainingShape shape = float8_step();
  shape.model.dim = 128;
  shape.model.head_dim = 32;
  shape.model.ffn_dim = 768;
  return shape;
}

std::vector<std::string> all_recipes() {
  const std::vector<std::string_view> names = fp8::recipe_names();
  return {names.begin(), names.end()};
}

}  // namespace ottava::test
