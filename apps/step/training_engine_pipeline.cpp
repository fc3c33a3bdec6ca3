// The step of a rank that holds some stages of the model.
#include <utility>

#include "apps/step/training_engine.h"
#include "core/ops/elementwise.h"
#include "core/ops/host_values.h"

namespace ottava {

PipelineRunner::Boundary TrainingEngine::boundary(int64_t tokens) const {
  return {shape_.parameters.compute, {tokens / ranks_.tensor_parallel.size(), shape_.model.dim}};
}

void TrainingEngine::run_pipeline(const StepContext& c, const HostTokens& tokens) {
  const RankRows rows = rows_of(shape_.batch, shape_.sequence);
  const int64_t count = rows.tokens(), micro_batches = shape_.micro_batches;
  begin_part();
  // Weights stay whole for the step, and no receive may hold up their gathers.
  parameters_->gather_all(model_->backward_uses());
  std::vector<MicroBatch> batches;
  for (int64_t m = 0; m < micro_batches; ++m) {
    if (m + 1 < micro_batches) inputs_->send(tokens, m + 1, count);
    MicroBatch& micro = batches.emplace_back(inputs_->receive(tokens, m, rows));
    if (shape_.sequence_losses)
      micro.sequence_losses = step_sequence_losses_.slice(m * rows.batch, (m + 1) * rows.batch);
    micro.z_loss_sum = z_loss_sum_;
  }
  if (shape_.sequence_losses) fill_zero(stream_, step_sequence_losses_);
  fill_zero(stream_, loss_sums_);
  std::vector<LlamaSaved> saved(micro_batches * shape_.pipeline.shape.chunks);
  pipeline_->run(stream_, arena_, boundary(count), [&](const Action& a, Allocation in) {
    const StepProfile::Scope pass(
        profile_, profile_ ? fmt::format("micro-batch {} chunk {}", a.micro_batch, a.chunk) : "",
        StepProfile::Kind::pass);
    return run_action(c, a, batches[a.micro_batch], std::move(in),
                      saved[a.chunk * micro_batches + a.micro_batch]);
  });
  parameters_->finish_gradients();
}

Allocation TrainingEngine::run_action(const StepContext& c, const Action& a, const MicroBatch& micro,
                                      Allocation in, LlamaSaved& saved) {
  const StageUnits units = shape_.pipeline.units_of(ranks_.pp->rank(), a.chunk);
  if (float8_) float8_->select_micro_batch(a.micro_batch);
  if (a.kind == Action::Kind::F) {
    Allocation out = model_->forward(c, units, micro, loss(), std::move(in), saved);
    if (!out) copy(stream_, loss_sum_, loss_sums_.slice(a.micro_batch, a.micro_batch + 1));
    return out;
  }
  if (a.kind == Action::Kind::I) return model_->input_gradient(c, units, micro, std::move(in), saved);
  parameters_->begin_micro_batch(a.micro_batch + 1 == shape_.micro_batches);
  if (a.kind == Action::Kind::W) {
    model_->weight_gradients(c, units, std::exchange(saved, {}));
    return {};
  }
  return model_->backward(c, units, micro, std::move(in), std::exchange(saved, {}));
}

// Products of blocks are called layers.3.attention.wqkv; there is one more, the output.
bool TrainingEngine::holds_layer(std::string_view product) const {
  for (size_t i = 0; i < table_.blocks.size(); ++i) {
    if (product.starts_with(fmt::format("layers.{}.", i)))
      return ranks_.coordinates.holds(static_cast<int>(i) + 1);
  }
  return ranks_.coordinates.holds(table_.units - 1);
}

// Zero except on the last stage.
void TrainingEngine::share_losses() {
  Group group(*ranks_.pp);
  for (const Tensor& losses : {loss_sum_, z_loss_sum_, step_sequence_losses_})
    if (!losses.empty()) ranks_.pp->all_reduce(stream_, {.send = losses, .label = "losses"});
  group.end().wait(stream_);
}

double TrainingEngine::over_stages(double value) {
  if (!pipeline_) return value;
  copy_from_host(stream_, &value, stage_value_);
  ranks_.pp->all_reduce(stream_, {.send = stage_value_, .label = "validation loss"}).wait(stream_);
  copy_to_host(stream_, stage_value_, &value);
  stream_.synchronize();
  require_no_failure();
  return value;
}

}  // namespace ottava
