#include "apps/config/resolved_float8.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "apps/config/float8_ratios.h"
#include "core/error.h"

namespace ottava {
namespace {

// Where `auto` finds its ratios. Those of a GPU or of a file are settled later (settle_decisions); until then
// every candidate runs in FP8.
std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups(
    const Config& c, const Decisions* measured, bool on_gpu, int64_t tokens) {
  if (!c.float8.automatic) return {};
  if (measured) return speedups_of(*measured, tokens, c.float8.auto_decisions);
  if (on_gpu || !c.float8.auto_decisions.empty())
    return [](const fp8::PolicyGemm&, const fp8::Recipe&) { return std::nullopt; };
  return {};
}

// Validation runs the same products on batches of its own.
void check_validation_tokens(const TrainingShape& shape, int cp) {
  const int64_t tokens = shape.validation_batch * shape.validation_sequence / cp;
  for (const fp8::GemmDecision& d : shape.float8_policy.decisions) {
    const int64_t of = d.recipe ? d.recipe->alignment() : 1;
    if (tokens % of == 0) continue;
    fail<ConfigError>("fp8",
                      "validation.local_batch_size {} x validation.seq_len {}{} = {} tokens are not a "
                      "multiple of {} ({}/{} = {:.6g}), as {} in {} requires: change one of the two",
                      shape.validation_batch, shape.validation_sequence,
                      cp == 1 ? "" : fmt::format(" / context_parallel_degree {}", cp), tokens, of, tokens, of,
                      static_cast<double>(tokens) / of, d.gemm.name, fp8::name_of(d.recipe->name));
  }
}

struct Tokens {
  int64_t count;
  std::string_view of;
};

// Logits are made for so many tokens at a time; the last chunk has what is left.
void check_output_chunks(const fp8::GemmDecision& output, int64_t chunk_tokens, const Tokens& tokens) {
  const int64_t chunk = std::min(chunk_tokens, tokens.count), of = output.recipe->alignment();
  for (const int64_t rows : {chunk, tokens.count % chunk}) {
    if (rows % of == 0) continue;
    fail<ConfigError>("fp8",
                      "the output layer in FP8 processes the {} tokens of {} {} at a time{}, which is not a "
                      "multiple of {} ({}/{} = {:.6g}): set model.loss_chunk_tokens to a multiple",
                      tokens.count, tokens.of, chunk,
                      rows == chunk ? "" : fmt::format(" and {} at last", rows), of, rows, of,
                      static_cast<double>(rows) / of);
  }
}

}  // namespace

void resolve_float8(const Config& c, const LlamaParameters& table, const Mesh& mesh,
                    std::optional<int> compute_capability, const Decisions* measured, TrainingShape& shape) {
  const int tp = mesh.size(MeshAxis::tp), cp = mesh.size(MeshAxis::cp);
  const int64_t tokens = shape.batch * shape.sequence / cp;
  fp8::PolicyInputs inputs = llama_policy_inputs(table, tp, tokens);
  if (compute_capability) inputs.hardware = fp8::recipes_of_compute_capability(*compute_capability);
  inputs.measured_speedup = speedups(c, measured, compute_capability.has_value(), tokens);
  inputs.is_measured_elsewhere = !c.float8.auto_decisions.empty();
  shape.float8_policy = fp8::decide_policy(c.float8, inputs);
  const auto has_history = [](const fp8::GemmDecision& d) { return d.recipe && d.recipe->has_history(); };
  if (shape.pipeline.is_on() && std::ranges::any_of(shape.float8_policy.decisions, has_history))
    fail<ConfigError>("fp8",
                      "recipe delayed needs the amaxes of all layers on every rank, but a pipeline stage has "
                      "only some layers: use recipe tensorwise or rowwise, or pipeline_parallel_degree 1");
  fp8::require_some_float8(shape.float8_policy, c.float8);
  check_validation_tokens(shape, cp);
  shape.float8 = llama_float8(table, shape.float8_policy, c.float8, tp);
  shape.parameters.float8 = shape.float8.weights;
  shape.parameters.float8_gradients = c.float8.enable_float8_gradient_all_to_all && shape.float8.is_on();
  const fp8::GemmDecision* output = shape.float8_policy.find("output");
  if (!output || !output->recipe) return;
  check_output_chunks(*output, shape.model_options.loss_chunk_rows, {tokens, "a step"});
  if (shape.validation_batch > 0) {
    check_output_chunks(*output, shape.model_options.loss_chunk_rows,
                        {shape.validation_batch * shape.validation_sequence / cp, "validation"});
  }
  if (output->padded_rows > 0 && c.parallelism.disable_loss_parallel && tp > 1) {
    fail<ConfigError>("fp8",
                      "quantize.linear.float8.pad_vocabulary pads the logits of each rank, which "
                      "parallelism.disable_loss_parallel would gather: remove one of them");
  }
}

void apply_measured_float8(Experiment& e, const Decisions& measured) {
  resolve_float8(e.config, llama_parameters(e.shape.model), e.mesh, e.compute_capability, &measured, e.shape);
}

std::vector<std::string> weights_gathered_as_values(const Experiment& e) {
  const std::vector<ParameterSpec> specs = llama_parameters(e.shape.model).specs;
  std::vector<std::string> names;
  for (const Float8WeightSpec& weight : e.shape.parameters.float8.specs) {
    const Shape slice = tensor_parallel_shape(specs[weight.parameter], e.mesh.size(MeshAxis::tp));
    if (!float8_weight_travel(weight, slice[0], e.mesh.shards()).in_codes) names.push_back(weight.name);
  }
  return names;
}

bool leaves_weight_codes_open(const Experiment& e) {
  return e.config.float8.keep_weight_codes == Float8Config::KeepCodes::automatic && e.mesh.shards() > 1 &&
         e.shape.parameters.reshard != FsdpOptions::Reshard::never && !weights_gathered_as_values(e).empty();
}

}  // namespace ottava
