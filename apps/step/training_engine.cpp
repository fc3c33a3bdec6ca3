#include "apps/step/training_engine.h"

#include <utility>

#include "core/cost.h"
#include "core/cpu/matmul_cache.h"
#include "core/ops/host_values.h"
#include "core/ops/matmul/matmul.h"
#include "core/round_up.h"
#include "models/float8_runs.h"
#include "parallel/comm/all_ranks.h"

namespace ottava {

namespace {

// A call that waits for another stage would hold up the calls of tensor and context parallel behind it.
Receives receives_of(const Stream& stream, const RankGroups& ranks) {
  const bool has_lanes = stream.target().is_gpu() && ranks.pp->carries_axes_apart();
  return has_lanes || ranks.tp->size() * ranks.cp->size() == 1 ? Receives::early : Receives::late;
}

}  // namespace

TrainingEngine::TrainingEngine(TrainingShape shape, Stream& stream, Arena& arena, RankGroups& ranks,
                               int64_t matmul_workspace_bytes)
    : shape_(std::move(shape)),
      stream_(stream),
      arena_(arena),
      ranks_(ranks),
      table_(parameter_table(shape_)) {
  if (stream.target().type == DeviceType::cpu) stream.matmul_cache().set_products(shape_.cpu_products);
  ranks.coordinates.units = shape_.pipeline.units_of(ranks.pp->rank());
  parameters_ = std::make_unique<Fsdp>(stream, arena, ranks, table_.specs, shape_.parameters);
  if (shape_.model_options.overlap != BlockOverlap{}) ranks.tp->connect_pairs(all_ranks(ranks.tp->size()));
  model_ = std::make_unique<LlamaModel>(shape_.model, table_, stream, arena, ranks.tensor_parallel.size(),
                                        shape_.model_options, shape_.float8);
  if (shape_.pipeline.is_on()) {
    pipeline_ =
        std::make_unique<PipelineRunner>(shape_.pipeline.shape, receives_of(stream, ranks), *ranks.pp);
    shape_.float8.state.in_flight = shape_.micro_batches;
  }
  if (shape_.float8.is_on()) float8_ = std::make_unique<Float8State>(arena, ranks, shape_.float8.state);
  const RankRows rows = rows_of(shape_.batch, shape_.sequence);
  inputs_ = std::make_unique<MicroBatchInputs>(shape_, stream, arena, ranks.context_parallel.size());
  update_ = std::make_unique<StepUpdate>(shape_, table_, stream, arena, ranks, *parameters_, float8_.get());
  loss_sum_ = arena.persistent("loss sum", DType::f32, {1});
  if (shape_.model_options.z_loss_weight > 0) z_loss_sum_ = arena.persistent("z-loss sum", DType::f32, {1});
  if (shape_.validation_batch > 0) {
    token_losses_ = arena.persistent("token losses", DType::f32,
                                     {rows_of(shape_.validation_batch, shape_.validation_sequence).tokens()});
  }
  // FP8 products are of whole groups of 16 rows.
  const int64_t texts = shape_.float8.is_on() ? round_up(shape_.prompts, 16) : shape_.prompts;
  if (shape_.prompts > 0)
    token_pass_ = std::make_unique<TokenPass>(arena, shape_.model, shape_.parameters.compute,
                                              TokenPass::Size{texts, shape_.sample_length});
  loss_sums_ = arena.persistent("loss sums", DType::f32, {shape_.micro_batches});
  if (shape_.sequence_losses) {
    sequence_losses_ = arena.persistent("sequence losses", DType::f32, {rows.batch});
    step_sequence_losses_ =
        arena.persistent("sequence losses of the step", DType::f32, {shape_.micro_batches * rows.batch});
  }
  if (pipeline_) stage_value_ = arena.persistent("value of a stage", DType::f64, {1});
  Tensor workspace =
      arena.persistent("matmul workspace", DType::u8, {matmul_workspace_bytes}, MemoryCategory::workspace);
  if (stream.is_meta()) return;
  set_matmul_workspace(stream, workspace);
  if (!float8_) return;
  float8_->clear_counters(stream);
  parameters_->float8()->clear_counters(stream);
}

StepContext TrainingEngine::context() {
  return {.stream = stream_,
          .arena = arena_,
          .parameters = *parameters_,
          .tensor_parallel = ranks_.tensor_parallel,
          .compute = shape_.parameters.compute,
          .context_parallel = ranks_.context_parallel,
          .profile = profile_,
          .float8 = float8_.get()};
}

namespace {

// Turns the sums of [micro-batches, 2, batch] chunks into those of sequences.
void add_halves(std::vector<float>& sums, size_t batch) {
  std::vector<float> whole;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (i % (2 * batch) < batch) whole.push_back(sums[i] + sums[i + batch]);
  }
  sums = std::move(whole);
}

/// Notes what the rank waits for while it lives.
class Watch {
 public:
  Watch(RankState& rank, StepProfile* profile) : rank_(rank) { rank_.set_profile(profile); }
  ~Watch() { rank_.set_profile(nullptr); }
  Watch(const Watch&) = delete;

 private:
  RankState& rank_;
};

}  // namespace

// After a failure NCCL's calls end early, and what has been read from the device may be anything.
void TrainingEngine::require_no_failure() const {
  const RankState& rank = ranks_.world->state();
  if (rank.failed()) throw CommError(rank.failure());
}

LlamaModel::Loss TrainingEngine::loss() const {
  return {.sum = loss_sum_, .grad_scale = update_->loss_gradient()};
}

void TrainingEngine::run_micro_batches(const StepContext& c, const HostTokens& tokens) {
  const RankRows rows = rows_of(shape_.batch, shape_.sequence);
  for (int64_t m = 0; m < shape_.micro_batches; ++m) {
    const bool is_first = m == 0, is_last = m + 1 == shape_.micro_batches;
    const StepPart part = is_first ? (is_last ? StepPart::only : StepPart::first)
                                   : (is_last ? StepPart::last : StepPart::middle);
    begin_part();
    const StepProfile::Scope pass(profile_, profile_ ? fmt::format("micro-batch {}", m) : "",
                                  StepProfile::Kind::pass);
    MicroBatch micro = inputs_->receive(tokens, m, rows);
    micro.sequence_losses = sequence_losses_;
    micro.z_loss_sum = z_loss_sum_;
    if (!is_last) inputs_->send(tokens, m + 1, rows.tokens());  // arrives while this one is computed
    graphs_.run(part, stream_, [&] {
      parameters_->begin_micro_batch(is_last);
      model_->forward_backward(c, micro, loss());
      is_last ? parameters_->finish_gradients() : parameters_->finish_micro_batch();
    });
    copy(stream_, loss_sum_, loss_sums_.slice(m, m + 1));
    if (shape_.sequence_losses)
      copy(stream_, sequence_losses_, step_sequence_losses_.slice(m * rows.batch, (m + 1) * rows.batch));
  }
}

StepOutputs TrainingEngine::read_outputs(const RankRows& rows) {
  StepOutputs out;
  float loss = 0, z_loss = 0;
  copy_to_host(stream_, loss_sum_, &loss);
  if (!z_loss_sum_.empty()) copy_to_host(stream_, z_loss_sum_, &z_loss);
  if (shape_.sequence_losses) {
    out.sequence_losses.resize(step_sequence_losses_.numel());
    copy_to_host(stream_, step_sequence_losses_, out.sequence_losses.data());
  }
  update_->read(out);
  require_no_failure();
  if (rows.batch != shape_.batch) add_halves(out.sequence_losses, shape_.batch);
  out.loss_sum = loss;
  out.z_loss_sum = z_loss;
  return out;
}

StepOutputs TrainingEngine::train_step(const HostTokens& tokens, const StepInputs& inputs,
                                       StepProfile* profile) try {
  profile_ = profile;
  const Watch watch(ranks_.world->state(), profile);
  const RankRows rows = rows_of(shape_.batch, shape_.sequence);
  inputs_->send(tokens, 0, rows.tokens());
  update_->begin(inputs);
  if (float8_) float8_->follow_loss_scale(stream_, inputs.loss_scale);

  Arena::Phase phase(arena_, "train");
  StepContext c = context();
  const fp8::AmaxHistory* history = float8_ ? float8_->history() : nullptr;
  graphs_.begin_step(profile ? StepGraphs::Pace::step_by_step : StepGraphs::Pace::launched,
                     history && !history->is_full() ? StepGraphs::Phase::filling : StepGraphs::Phase::full);
  fill_zero(stream_, loss_sum_);
  if (!z_loss_sum_.empty()) fill_zero(stream_, z_loss_sum_);
  begin_parameters(c);
  pipeline_ ? run_pipeline(c, tokens) : run_micro_batches(c, tokens);
  begin_part();
  if (inputs.update_after) inputs.update_after->wait(stream_);
  graphs_.run(StepPart::update, stream_, [&] {
    const StepProfile::Scope pass(profile_, "update", StepProfile::Kind::pass);
    if (float8_) float8_->finish_step(stream_);
    update_->run(c, loss_sum_);
  });
  // The host's part of the update, also when the device's was launched as a graph.
  parameters_->weights_changed();
  if (float8_) parameters_->float8()->weights_updated();
  check_products();
  if (pipeline_) share_losses();
  if (stream_.is_meta()) return {};
  StepOutputs out = read_outputs(rows);
  if (float8_ && !out.skipped) {
    float8_->advance_history(stream_);
    parameters_->float8()->advance_history(stream_);
  }
  return out;
} catch (const std::exception& error) {
  give_up(error);
  throw;
}

// Gathers and sums under way read and write the arena, which the handler of the error frees next.
void TrainingEngine::give_up(const std::exception& error) const noexcept {
  if (!stream_.is_meta() && ranks_.world->size() > 1) ranks_.world->abort(error.what());
}

void TrainingEngine::begin_part() {
  if (stream_.is_meta()) stream_.recorder().begin_part();
}

void TrainingEngine::begin_parameters(const StepContext& c) {
  if (!float8_) return parameters_->begin_step();
  StepContext::Scope scope(c, "weights.quantize");
  parameters_->begin_step();
  float8_->begin_step(stream_);
}

void TrainingEngine::check_products() const {
  if (!float8_) return;
  if (float8_->products_run() == 0 && graphs_.nodes() > 0) return;  // launched: counted when it was recorded
  check_float8_runs(shape_.float8_policy, *float8_, [&](std::string_view name) { return holds_layer(name); });
}

double TrainingEngine::validate(const HostTokens& tokens) try {
  profile_ = nullptr;
  const RankRows rows = rows_of(shape_.validation_batch, shape_.validation_sequence);
  inputs_->send(tokens, 0, rows.tokens());
  Arena::Phase phase(arena_, "validate");
  fill_zero(stream_, loss_sum_);
  parameters_->begin_forward_only();
  if (float8_) float8_->begin_forward_only(stream_);
  MicroBatch micro = inputs_->receive(tokens, 0, rows);
  micro.token_losses = token_losses_.slice(0, micro.targets.numel());
  const StepContext c = context();
  if (pipeline_) {
    fill_zero(stream_, token_losses_);
    pipeline_->run_forward(stream_, arena_, boundary(micro.tokens.numel()),
                           [&](const Action& a, Allocation in) {
                             return model_->evaluate(c, shape_.pipeline.units_of(ranks_.pp->rank(), a.chunk),
                                                     micro, loss_sum_, std::move(in));
                           });
  } else {
    model_->evaluate(c, model_->all_units(), micro, loss_sum_, {});
  }
  if (stream_.is_meta()) return 0;
  float loss = 0;
  copy_to_host(stream_, loss_sum_, &loss);
  stream_.synchronize();
  require_no_failure();
  return loss;
} catch (const std::exception& error) {
  give_up(error);
  throw;
}

std::vector<float> TrainingEngine::next_logits(std::span<const int32_t> tokens, int64_t position) try {
  profile_ = nullptr;
  Arena::Phase phase(arena_, "sample");
  parameters_->begin_forward_only();
  if (float8_) float8_->begin_forward_only(stream_);
  std::vector<float> logits = token_pass_->run(context(), *model_, tokens, position);
  require_no_failure();
  return logits;
} catch (const std::exception& error) {
  give_up(error);
  throw;
}

std::vector<float> TrainingEngine::token_losses() { return host_values<float>(stream_, token_losses_); }

std::vector<float> TrainingEngine::loss_after_each_micro_batch() {
  if (!ranks_.coordinates.holds(table_.units - 1)) return {};
  return host_values<float>(stream_, loss_sums_);
}

}  // namespace ottava
