#include "apps/training_engine.h"

#include <cmath>
#include <utility>

#include "core/ops/elementwise.h"
#include "core/ops/matmul.h"
#include "core/optim/grad_norm.h"

namespace ottava {
namespace {

// The step of a loss that overflowed has no meaning; what the scalars hold besides is set by clip_factor on the device.
std::vector<float> step_scalars(const StepInputs& inputs, const AdamwHyper& adamw) {
  std::vector<float> s(kStepScalars, 0.0f);
  double t = static_cast<double>(inputs.optimizer_step);
  s[kLearningRate] = static_cast<float>(inputs.learning_rate);
  s[kBiasCorrection1] = static_cast<float>(1 - std::pow(static_cast<double>(adamw.beta1), t));
  s[kBiasCorrection2] = static_cast<float>(1 - std::pow(static_cast<double>(adamw.beta2), t));
  s[kLossScale] = static_cast<float>(inputs.loss_scale);
  s[kLossGradient] = inputs.valid_tokens > 0 ? static_cast<float>(inputs.loss_scale / static_cast<double>(inputs.valid_tokens)) : 0.0f;
  return s;
}

}  // namespace

TrainingEngine::TrainingEngine(TrainingShape shape, Stream& stream, Arena& arena, RankGroups& ranks)
    : shape_(std::move(shape)), stream_(stream), arena_(arena), ranks_(ranks), table_(llama_parameters(shape_.model)) {
  parameters_ = std::make_unique<Fsdp>(stream, arena, ranks, table_.specs, shape_.parameters);
  model_ = std::make_unique<LlamaModel>(shape_.model, table_, stream, arena, ranks.tensor_parallel.size(), shape_.model_options);
  const int64_t sequences = std::max(shape_.batch * shape_.micro_batches, shape_.validation_batch);
  auto tokens = [&](std::string_view name) { return arena.persistent(name, DType::i32, {sequences, shape_.sequence}, MemoryCategory::data); };
  tokens_ = tokens("tokens");
  targets_ = tokens("targets");
  if (shape_.block_causal) {
    document_start_ = tokens("document starts");
    positions_ = tokens("positions");
  }
  scalars_ = arena.persistent("step scalars", DType::f32, {kStepScalars}, MemoryCategory::data);
  step_ = arena.persistent("step", DType::i64, {1}, MemoryCategory::data);
  loss_sum_ = arena.persistent("loss sum", DType::f32, {1}, MemoryCategory::data);
  sum_of_squares_ = arena.persistent("sum of squares", DType::f64, {1}, MemoryCategory::data);
  skipped_ = arena.persistent("skipped", DType::i32, {1}, MemoryCategory::data);
}

StepContext TrainingEngine::context() {
  return {.stream = stream_,
          .arena = arena_,
          .parameters = *parameters_,
          .tensor_parallel = ranks_.tensor_parallel,
          .compute = shape_.parameters.compute,
          .profile = profile_};
}

void TrainingEngine::upload(const void* host, const Tensor& device) {
  if (stream_.type() == DeviceType::meta) return;
  cast(stream_, Tensor{const_cast<void*>(host), device.dtype, device.shape}, device);
}

MicroBatch TrainingEngine::micro_batch(int64_t index, int64_t batch) const {
  auto rows = [&](const Tensor& t) { return t.empty() ? t : t.slice(index * batch, (index + 1) * batch); };
  return {rows(tokens_), rows(targets_), rows(document_start_), rows(positions_)};
}

StepOutputs TrainingEngine::train_step(const HostTokens& tokens, const StepInputs& inputs, StepProfile* profile) {
  profile_ = profile;
  const int64_t sequences = shape_.batch * shape_.micro_batches;
  upload(tokens.inputs.data(), tokens_.slice(0, sequences));
  upload(tokens.targets.data(), targets_.slice(0, sequences));
  if (shape_.block_causal) {
    upload(tokens.document_start.data(), document_start_.slice(0, sequences));
    upload(tokens.positions.data(), positions_.slice(0, sequences));
  }
  std::vector<float> scalars = step_scalars(inputs, shape_.adamw);
  upload(scalars.data(), scalars_);
  upload(&inputs.optimizer_step, step_);

  Arena::Phase phase(arena_, "train");
  StepContext c = context();
  fill_zero(stream_, loss_sum_);
  parameters_->begin_step();
  const Tensor grad_scale = scalars_.slice(kLossGradient, kLossGradient + 1);
  for (int64_t m = 0; m < shape_.micro_batches; ++m) {
    parameters_->begin_micro_batch(m + 1 == shape_.micro_batches);
    model_->forward_backward(c, micro_batch(m, shape_.batch), loss_sum_, grad_scale);
  }
  parameters_->finish_gradients();
  {
    StepContext::Scope scope(c, "optimizer");
    std::vector<Tensor> counted = parameters_->counted_gradients();
    std::vector<Shape> shapes;
    for (const Tensor& g : counted) shapes.push_back(g.shape);
    Allocation workspace = c.scratch("gradient norm", DType::f64, grad_norm_workspace(shapes));
    grad_norm_squared(stream_, counted, sum_of_squares_, workspace);
    parameters_->all_reduce_norm(sum_of_squares_);
    clip_factor(stream_, sum_of_squares_, shape_.max_norm, scalars_, skipped_);
    std::vector<AdamwTensor> tensors;
    for (size_t p = 0; p < table_.specs.size(); ++p) {
      const ParameterShard& s = parameters_->shard(static_cast<int>(p));
      tensors.push_back({.master = s.master,
                         .gradient = s.gradient,
                         .exp_avg = s.exp_avg,
                         .exp_avg_sq = s.exp_avg_sq,
                         .compute = shape_.parameters.compute == DType::f32 ? Tensor{} : s.compute,
                         .weight_decay = shape_.weight_decay.empty() ? 0.0f : shape_.weight_decay[p],
                         .key = p,
                         .first_element = s.rows.begin * (s.master.shape.rank() == 2 ? s.master.cols() : 1)});
    }
    adamw(stream_, tensors, shape_.adamw, scalars_, step_);
    parameters_->weights_changed();
  }
  StepOutputs out;
  if (stream_.type() == DeviceType::meta) return out;
  float loss = 0;
  int32_t skipped = 0;
  cast(stream_, loss_sum_, view_of(&loss, {1}));
  cast(stream_, scalars_, view_of(scalars.data(), {kStepScalars}));
  cast(stream_, skipped_, view_of(&skipped, {1}));
  stream_.synchronize();
  out.loss_sum = loss;
  out.grad_norm = scalars[kGradientNorm];
  out.skipped = skipped != 0;
  return out;
}

double TrainingEngine::validate(const HostTokens& tokens) {
  profile_ = nullptr;
  upload(tokens.inputs.data(), tokens_.slice(0, shape_.validation_batch));
  upload(tokens.targets.data(), targets_.slice(0, shape_.validation_batch));
  if (shape_.block_causal) {
    upload(tokens.document_start.data(), document_start_.slice(0, shape_.validation_batch));
    upload(tokens.positions.data(), positions_.slice(0, shape_.validation_batch));
  }
  Arena::Phase phase(arena_, "validate");
  fill_zero(stream_, loss_sum_);
  parameters_->begin_forward_only();
  model_->evaluate(context(), micro_batch(0, shape_.validation_batch), loss_sum_);
  float loss = 0;
  if (stream_.type() != DeviceType::meta) {
    cast(stream_, loss_sum_, view_of(&loss, {1}));
    stream_.synchronize();
  }
  return loss;
}

}  // namespace ottava
