#include "apps/train/training_engine.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cost.h"
#include "core/cpu/matmul_cache.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"
#include "core/optim/grad_norm.h"
#include "fp8/step_amax.h"
#include "models/float8_runs.h"

namespace ottava {
namespace {

// Those not set here are written on the device by clip_factor().
std::vector<float> step_scalars(const StepInputs& inputs, const AdamwHyper& adamw) {
  std::vector<float> s(kStepScalars, 0.0f);
  double t = static_cast<double>(inputs.optimizer_step);
  s[kLearningRate] = static_cast<float>(inputs.learning_rate);
  s[kBiasCorrection1] = static_cast<float>(1 - std::pow(static_cast<double>(adamw.beta1), t));
  s[kBiasCorrection2] = static_cast<float>(1 - std::pow(static_cast<double>(adamw.beta2), t));
  s[kLossScale] = static_cast<float>(inputs.loss_scale);
  s[kLossGradient] = inputs.valid_tokens > 0
                         ? static_cast<float>(inputs.loss_scale / static_cast<double>(inputs.valid_tokens))
                         : 0.0f;
  return s;
}

}  // namespace

LlamaParameters parameter_table(const TrainingShape& shape) {
  LlamaParameters table = llama_parameters(shape.model);
  for (size_t p = 0; p < shape.groups.size(); ++p) table.specs[p].rule = shape.groups[p].rule;
  return table;
}

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
  muon_ = std::make_unique<MuonUpdate>(stream, arena, *ranks.stage, *parameters_, shape_.muon);
  model_ = std::make_unique<LlamaModel>(shape_.model, table_, stream, arena, ranks.tensor_parallel.size(),
                                        shape_.model_options, shape_.float8);
  if (shape_.pipeline.is_on()) {
    // What waits for another stage would hold up the calls of tensor and context parallel behind it.
    const Receives receives = ranks.tp->size() * ranks.cp->size() > 1 ? Receives::late : Receives::early;
    pipeline_ = std::make_unique<PipelineRunner>(shape_.pipeline.shape, receives, *ranks.pp);
    shape_.float8.state.in_flight = shape_.micro_batches;
  }
  if (shape_.float8.is_on()) float8_ = std::make_unique<Float8State>(arena, ranks, shape_.float8.state);
  const RankRows rows = rows_of(shape_.batch, shape_.sequence);
  const int64_t of_validation = rows_of(shape_.validation_batch, shape_.validation_sequence).tokens(),
                of_training = rows.tokens(), at_once = pipeline_ ? shape_.micro_batches : 1;
  std::vector<std::string_view> names{"tokens", "targets"};
  if (shape_.block_causal || ranks.context_parallel.size() > 1) names.push_back("positions");
  if (shape_.block_causal) names.push_back("document starts");
  for (std::string_view name : names)
    inputs_.push_back(arena.persistent(name, DType::i32, {std::max(at_once * of_training, of_validation)},
                                       MemoryCategory::data));
  if (stream.target().type == DeviceType::cuda)
    ring_ = std::make_unique<InputRing>(stream, arena, names, std::max(of_training, of_validation));
  scalars_ = arena.persistent("step scalars", DType::f32, {kStepScalars}, MemoryCategory::data);
  step_ = arena.persistent("step", DType::i64, {1}, MemoryCategory::data);
  loss_sum_ = arena.persistent("loss sum", DType::f32, {1}, MemoryCategory::data);
  if (shape_.model_options.z_loss_weight > 0)
    z_loss_sum_ = arena.persistent("z-loss sum", DType::f32, {1}, MemoryCategory::data);
  if (shape_.validation_batch > 0) {
    token_losses_ = arena.persistent("token losses", DType::f32, {of_validation}, MemoryCategory::data);
  }
  loss_sums_ = arena.persistent("loss sums", DType::f32, {shape_.micro_batches}, MemoryCategory::data);
  if (shape_.sequence_losses) {
    sequence_losses_ = arena.persistent("sequence losses", DType::f32, {rows.batch}, MemoryCategory::data);
    step_sequence_losses_ = arena.persistent("sequence losses of the step", DType::f32,
                                             {shape_.micro_batches * rows.batch}, MemoryCategory::data);
  }
  sum_of_squares_ = arena.persistent("sum of squares", DType::f64, {1}, MemoryCategory::data);
  skipped_ = arena.persistent("skipped", DType::i32, {1}, MemoryCategory::data);
  if (shape_.spikes.sigma > 0) {
    auto of = [&](std::string_view name, DType dtype, Shape s) {
      return arena.persistent(name, dtype, s, MemoryCategory::data);
    };
    spikes_ = {.loss_sum = of("loss of the step", DType::f32, {1}),
               .window = of("spike window", DType::f32, {2, shape_.spikes.window}),
               .known = of("spike window's steps", DType::i64, {1}),
               .found = of("spike bounds", DType::f32, {4}),
               .scalars = scalars_,
               .skipped = skipped_};
    restore({});
  }
  Tensor workspace =
      arena.persistent("matmul workspace", DType::u8, {matmul_workspace_bytes}, MemoryCategory::workspace);
  if (stream.type() != DeviceType::meta) set_matmul_workspace(stream, workspace);
  if (stream.type() == DeviceType::cuda)
    pinned_scalars_ = PinnedInputs(stream.device(), 2 * kMemoryAlignment);
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

void TrainingEngine::upload(const void* host, const Tensor& device) {
  if (stream_.type() == DeviceType::meta) return;
  if (stream_.type() == DeviceType::cuda) return cast(stream_, pinned_scalars_.hold(host, device), device);
  cast(stream_, Tensor{const_cast<void*>(host), device.dtype, device.shape}, device);
}

namespace {

std::vector<std::span<const int32_t>> share_of(const HostTokens& tokens, size_t arrays, int64_t index,
                                               int64_t count) {
  std::vector<std::span<const int32_t>> share;
  for (const auto& all : {tokens.inputs, tokens.targets, tokens.positions, tokens.document_start}) {
    if (share.size() < arrays)
      share.push_back(all.subspan(static_cast<size_t>(index * count), static_cast<size_t>(count)));
  }
  return share;
}

// From the sums of [micro-batches, 2, batch] chunks to those of sequences.
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

void TrainingEngine::send(const HostTokens& tokens, int64_t index, int64_t count) {
  if (!ring_) return;
  if (stream_.type() == DeviceType::meta) return ring_->upload({});
  ring_->upload(share_of(tokens, inputs_.size(), index, count));
}

MicroBatch TrainingEngine::receive(const HostTokens& tokens, int64_t index, const RankRows& rows) {
  const int64_t count = rows.tokens();
  std::vector<Tensor> places;
  const int64_t first = pipeline_ ? index * count : 0;
  for (const Tensor& place : inputs_)
    places.push_back(place.slice(first, first + count).reshape({rows.batch, rows.sequence}));
  if (ring_) {
    ring_->take(places);
  } else if (stream_.type() == DeviceType::cpu) {
    const auto share = share_of(tokens, inputs_.size(), index, count);
    for (size_t i = 0; i < places.size(); ++i) upload(share[i].data(), places[i]);
  }
  places.resize(4);
  return {.tokens = places[0], .targets = places[1], .document_start = places[3], .positions = places[2]};
}

LlamaModel::Loss TrainingEngine::loss() const {
  return {.sum = loss_sum_, .grad_scale = scalars_.slice(kLossGradient, kLossGradient + 1)};
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
    MicroBatch micro = receive(tokens, m, rows);
    micro.sequence_losses = sequence_losses_;
    micro.z_loss_sum = z_loss_sum_;
    if (!is_last) send(tokens, m + 1, rows.tokens());  // arrives while this one is computed
    graphs_.run(part, stream_, [&] {
      parameters_->begin_micro_batch(is_last);
      model_->forward_backward(c, micro, loss());
      is_last ? parameters_->finish_gradients() : parameters_->finish_micro_batch();
    });
    cast(stream_, loss_sum_, loss_sums_.slice(m, m + 1));
    if (shape_.sequence_losses)
      cast(stream_, sequence_losses_, step_sequence_losses_.slice(m * rows.batch, (m + 1) * rows.batch));
  }
}

StepOutputs TrainingEngine::train_step(const HostTokens& tokens, const StepInputs& inputs,
                                       StepProfile* profile) {
  profile_ = profile;
  const Watch watch(ranks_.world->state(), profile);
  const RankRows rows = rows_of(shape_.batch, shape_.sequence);
  send(tokens, 0, rows.tokens());
  pinned_scalars_.begin();
  std::vector<float> scalars = step_scalars(inputs, shape_.adamw);
  upload(scalars.data(), scalars_);
  upload(&inputs.optimizer_step, step_);

  Arena::Phase phase(arena_, "train");
  StepContext c = context();
  // While an amax history fills, scales are read elsewhere than once it is full, and the first step that it
  // scales runs operations that none has run before.
  const fp8::AmaxHistory* history = float8_ ? float8_->history() : nullptr;
  const bool varies = history && history->steps <= history->length();
  graphs_.begin_step(profile || varies ? StepGraphs::Pace::step_by_step : StepGraphs::Pace::launched);
  fill_zero(stream_, loss_sum_);
  if (!z_loss_sum_.empty()) fill_zero(stream_, z_loss_sum_);
  begin_parameters(c);
  pipeline_ ? run_pipeline(c, tokens) : run_micro_batches(c, tokens);
  begin_part();
  if (inputs.update_after) inputs.update_after->wait(stream_);
  graphs_.run(StepPart::update, stream_, [&] {
    const StepProfile::Scope pass(profile_, "update", StepProfile::Kind::pass);
    if (float8_) float8_->finish_step(stream_);
    update(c);
  });
  parameters_
      ->weights_changed();  // the host's part of the update, also when the device's was launched as a graph
  if (float8_) parameters_->float8()->weights_changed(true);
  check_products();
  if (pipeline_) share_losses();
  StepOutputs out;
  if (stream_.type() == DeviceType::meta) return out;
  float loss = 0, z_loss = 0;
  int32_t skipped = 0;
  cast(stream_, loss_sum_, view_of(&loss, {1}));
  if (!z_loss_sum_.empty()) cast(stream_, z_loss_sum_, view_of(&z_loss, {1}));
  cast(stream_, scalars_, view_of(scalars.data(), {kStepScalars}));
  cast(stream_, skipped_, view_of(&skipped, {1}));
  if (shape_.sequence_losses) {
    out.sequence_losses.resize(static_cast<size_t>(step_sequence_losses_.numel()));
    cast(stream_, step_sequence_losses_, view_of(out.sequence_losses.data(), step_sequence_losses_.shape));
  }
  if (!spikes_.window.empty()) {
    out.spikes.values.resize(static_cast<size_t>(spikes_.window.numel()));
    cast(stream_, spikes_.window, view_of(out.spikes.values.data(), spikes_.window.shape));
    cast(stream_, spikes_.known, view_of(&out.spikes.known, {1}));
    cast(stream_, spikes_.found, view_of(out.spike.data(), {4}));
  }
  stream_.synchronize();
  if (rows.batch != shape_.batch) add_halves(out.sequence_losses, static_cast<size_t>(shape_.batch));
  out.loss_sum = loss;
  out.z_loss_sum = z_loss;
  out.grad_norm = scalars[kGradientNorm];
  out.why = static_cast<Skip>(skipped);
  out.skipped = out.why != kNotSkipped;
  if (float8_ && !out.skipped) {
    float8_->advance_history(stream_);
    parameters_->float8()->advance_history(stream_);
  }
  return out;
}

void TrainingEngine::begin_part() {
  if (stream_.type() == DeviceType::meta) stream_.recorder().begin_part();
}

void TrainingEngine::begin_parameters(const StepContext& c) {
  if (!float8_) return parameters_->begin_step();
  StepContext::Scope scope(c, "weights.quantize");
  parameters_->begin_step();
  float8_->begin_step(stream_);
}

void TrainingEngine::update(const StepContext& c) {
  find_gradient_factor(c);
  {
    StepContext::Scope scope(c, "muon");
    muon_->begin(scalars_);
  }
  update_by_adamw(c);
  StepContext::Scope scope(c, "muon");
  std::vector<MuonUpdate::Training> training(table_.specs.size());
  for (size_t p = 0; p < table_.specs.size(); ++p) {
    if (table_.specs[p].rule == UpdateRule::muon)
      training[p] = {shape_.groups[p].weight_decay, shape_.groups[p].lr_factor, updated_amax(p)};
  }
  muon_->finish(scalars_, training);
}

void TrainingEngine::find_gradient_factor(const StepContext& c) {
  StepContext::Scope scope(c, "optimizer");
  std::vector<Tensor> counted = parameters_->counted_gradients();
  std::vector<Shape> shapes;
  for (const Tensor& g : counted) shapes.push_back(g.shape);
  Allocation workspace = c.scratch("gradient norm", DType::f64, grad_norm_workspace(shapes));
  grad_norm_squared(stream_, counted, sum_of_squares_, workspace);
  share_norm();
  clip_factor(stream_, sum_of_squares_, shape_.max_norm, scalars_, skipped_);
  if (!spikes_.window.empty()) skip_spikes();
  if (float8_) parameters_->float8()->begin_update(stream_);
}

// One sum over all ranks, so that all of them decide alike: those that see the same tokens add nothing.
void TrainingEngine::skip_spikes() {
  if (ranks_.tensor_parallel.rank() == 0) {
    cast(stream_, loss_sum_, spikes_.loss_sum);
  } else {
    fill_zero(stream_, spikes_.loss_sum);
  }
  if (ranks_.world->size() > 1) {
    ranks_.world->all_reduce(stream_, {.send = spikes_.loss_sum, .recv = {}, .label = "loss of the step"})
        .wait(stream_);
  }
  skip_spike(stream_, spikes_, shape_.spikes);
}

void TrainingEngine::restore(const SpikeWindow& window) {
  if (spikes_.window.empty() || stream_.type() == DeviceType::meta) return;
  const bool fits = static_cast<int64_t>(window.values.size()) == spikes_.window.numel();
  std::vector<float> values(static_cast<size_t>(spikes_.window.numel()), 0.0f);
  if (fits) values = window.values;
  int64_t known = fits ? window.known : 0;
  cast(stream_, view_of(values.data(), spikes_.window.shape), spikes_.window);
  cast(stream_, view_of(&known, {1}), spikes_.known);
  stream_.synchronize();
}

Tensor TrainingEngine::updated_amax(size_t parameter) {
  return float8_ ? parameters_->float8()->updated_amax(static_cast<int>(parameter)) : Tensor{};
}

void TrainingEngine::update_by_adamw(const StepContext& c) {
  StepContext::Scope scope(c, "optimizer");
  std::vector<AdamwTensor> tensors;
  for (size_t p = 0; p < table_.specs.size(); ++p) {
    const ParameterShard& s = parameters_->shard(static_cast<int>(p));
    if (s.master.numel() == 0 || table_.specs[p].rule != UpdateRule::adamw) continue;
    const ParameterTraining training = shape_.groups.empty() ? ParameterTraining{} : shape_.groups[p];
    tensors.push_back({.master = s.master,
                       .gradient = s.gradient,
                       .exp_avg = s.exp_avg,
                       .exp_avg_sq = s.exp_avg_sq,
                       .compute = s.has_compute_copy ? s.compute : Tensor{},
                       .amax = updated_amax(p),
                       .weight_decay = training.weight_decay,
                       .lr_factor = training.lr_factor,
                       .key = p,
                       .first_element = s.rows.begin * (s.slice.rank() == 2 ? s.slice[1] : 1)});
  }
  adamw(stream_, tensors, shape_.adamw, scalars_, step_);
}

// FP8 saturates: an infinity in an operand may leave the gradients finite. So the flags of this rank's
// operands make the norm NaN. Replicas, whose norms are equal otherwise, take the largest of both halves of
// their bits, in which NaN wins.
void TrainingEngine::share_norm() {
  if (float8_) {
    fp8::poison_if_raised(stream_, float8_->all_non_finite(), sum_of_squares_);
    fp8::poison_if_raised(stream_, parameters_->float8()->non_finite(), sum_of_squares_);
  }
  parameters_->all_reduce_norm(sum_of_squares_);
  if (!float8_ || ranks_.dp_replicate->size() == 1) return;
  const Tensor halves{sum_of_squares_.data, DType::u32, {2}};
  ranks_.dp_replicate
      ->all_reduce(stream_, {.send = halves, .recv = {}, .op = ReduceOp::max, .label = "gradient norm"})
      .wait(stream_);
}

void TrainingEngine::check_products() const {
  if (!float8_) return;
  if (float8_->products_run() == 0 && graphs_.nodes() > 0) return;  // launched: counted when it was recorded
  check_float8_runs(shape_.float8_policy, *float8_, [&](std::string_view name) { return holds_layer(name); });
}

double TrainingEngine::validate(const HostTokens& tokens) {
  profile_ = nullptr;
  const RankRows rows = rows_of(shape_.validation_batch, shape_.validation_sequence);
  send(tokens, 0, rows.tokens());
  Arena::Phase phase(arena_, "validate");
  fill_zero(stream_, loss_sum_);
  parameters_->begin_forward_only();
  if (float8_) float8_->begin_forward_only(stream_);
  MicroBatch micro = receive(tokens, 0, rows);
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
  if (stream_.type() == DeviceType::meta) return 0;
  float loss = 0;
  cast(stream_, loss_sum_, view_of(&loss, {1}));
  stream_.synchronize();
  return loss;
}

std::vector<float> TrainingEngine::token_losses() {
  std::vector<float> losses(static_cast<size_t>(token_losses_.numel()));
  cast(stream_, token_losses_, view_of(losses.data(), token_losses_.shape));
  stream_.synchronize();
  return losses;
}

std::vector<float> TrainingEngine::loss_after_each_micro_batch() {
  std::vector<float> sums(static_cast<size_t>(shape_.micro_batches));
  cast(stream_, loss_sums_, view_of(sums.data(), loss_sums_.shape));
  stream_.synchronize();
  return sums;
}

std::string TrainingEngine::non_finite_gradients() {
  constexpr int64_t kNamed = 4;
  std::string names;
  int64_t found = 0;
  std::vector<float> host;
  for (size_t p = 0; p < table_.specs.size(); ++p) {
    const Tensor& gradient = parameters_->shard(static_cast<int>(p)).gradient;
    if (gradient.numel() == 0) continue;
    host.resize(static_cast<size_t>(gradient.numel()));
    cast(stream_, gradient, view_of(host.data(), gradient.shape));
    stream_.synchronize();
    if (std::all_of(host.begin(), host.end(), [](float g) { return std::isfinite(g); })) continue;
    if (++found <= kNamed) names += (found > 1 ? ", " : "") + table_.specs[p].name;
  }
  if (found == 0) return {};
  return fmt::format("{} of {}: {}{}", found, table_.specs.size(), names, found > kNamed ? ", ..." : "");
}

// As FP8 sees them: what f32 can hold may be an infinity in bf16.
bool TrainingEngine::holds_non_finite(size_t entry) {
  const ParameterShard& shard = parameters_->shard(parameters_->float8()->specs()[entry].parameter);
  std::vector<float> host(static_cast<size_t>(shard.master.numel()));
  if (host.empty()) return false;
  cast(stream_, shard.master, view_of(host.data(), shard.master.shape));
  stream_.synchronize();
  return !std::all_of(host.begin(), host.end(),
                      [](float w) { return std::isfinite(static_cast<float>(bf16(w))); });
}

std::string TrainingEngine::non_finite_operands() {
  if (!float8_) return {};
  std::vector<uint32_t> flags(static_cast<size_t>(float8_->all_non_finite().numel())),
      weights(static_cast<size_t>(parameters_->float8()->non_finite().numel()));
  cast(stream_, float8_->all_non_finite(), view_of(flags.data(), float8_->all_non_finite().shape));
  cast(stream_, parameters_->float8()->non_finite(),
       view_of(weights.data(), parameters_->float8()->non_finite().shape));
  stream_.synchronize();
  constexpr size_t kNamed = 6;
  std::vector<std::string> found;
  for (size_t w = 0; w < weights.size(); ++w) {
    if (!weights[w]) continue;
    const auto& specs = parameters_->float8()->specs();
    const bool is_gradient = w >= specs.size();
    found.push_back(is_gradient ? "a gradient that travels in FP8"
                                : fmt::format("w of {}{}", specs[w].name,
                                              holds_non_finite(w) ? " (in its own shard)" : ""));
  }
  for (size_t slot = 0; slot < flags.size(); ++slot) {
    if (flags[slot])
      found.push_back(fmt::format("{} of {}", slot % 2 ? "dy" : "x", float8_->options().products[slot / 2]));
  }
  const bool cut = found.size() > kNamed;
  if (cut) found.resize(kNamed);
  return fmt::format("{}{}", fmt::join(found, ", "), cut ? ", ..." : "");
}

}  // namespace ottava
