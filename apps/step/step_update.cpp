#include "apps/step/step_update.h"

#include <cmath>

#include "core/ops/elementwise.h"
#include "core/ops/host_values.h"
#include "core/optim/grad_norm.h"
#include "fp8/step_amax.h"

namespace ottava {
namespace {

// Those not set here are written on the device by clip_factor().
std::vector<float> step_scalars(const StepInputs& inputs) {
  std::vector<float> s(kStepScalars, 0.0f);
  s[kLearningRate] = static_cast<float>(inputs.learning_rate);
  s[kLossScale] = static_cast<float>(inputs.loss_scale);
  s[kLossGradient] =
      inputs.valid_tokens > 0 ? static_cast<float>(inputs.loss_scale / inputs.valid_tokens) : 0.0f;
  return s;
}

// Rows of a shard whose elements have consecutive numbers for stochastic rounding, and the first number.
struct NumberedRows {
  int64_t begin = 0, end = 0, first_element = 0;
};

// In a matrix that tensor parallel cuts along rows, every element has its number in the whole, so that ranks
// with the same rows (of KV heads) round alike and others do not. In one cut along columns, slices are
// numbered one after the other.
std::vector<NumberedRows> numbered_rows(const ParameterSpec& spec, const ShardCoordinates& at,
                                        const ParameterShard& s) {
  const int64_t columns = s.slice.rank() == 2 ? s.slice[1] : 1;
  if (at.tp_size == 1 || spec.tensor_parallel != TensorParallel::rows ||
      s.moments[Moment::exp_avg].dtype == DType::f32) {
    const int64_t slices = spec.tensor_parallel == TensorParallel::columns ? at.tp_rank : 0;
    return {{0, s.rows.size(), (slices * s.slice[0] + s.rows.begin) * columns}};
  }
  std::vector<int64_t> part_begin = {0};
  for (const ParameterPart& part : spec.parts) part_begin.push_back(part_begin.back() + part.rows);
  std::vector<NumberedRows> out;
  for (const ShardRun& run : shard_runs(spec, at))
    out.push_back(
        {run.local_row, run.local_row + run.rows(), (part_begin[run.part] + run.row_begin) * columns});
  return out;
}

}  // namespace

StepUpdate::StepUpdate(const TrainingShape& shape, const LlamaParameters& table, Stream& stream, Arena& arena,
                       RankGroups& ranks, Fsdp& parameters, Float8State* float8)
    : shape_(shape),
      table_(table),
      stream_(stream),
      ranks_(ranks),
      parameters_(parameters),
      float8_(float8),
      muon_(stream, arena, *ranks.stage, parameters, shape.muon),
      begun_(table.specs.size(), 0) {
  scalars_ = arena.persistent("step scalars", DType::f32, {kStepScalars});
  bias_corrections_ = arena.persistent("bias corrections", DType::f32, {std::ssize(begun_), 2});
  step_ = arena.persistent("step", DType::i64, {1});
  sum_of_squares_ = arena.persistent("sum of squares", DType::f64, {1});
  skipped_ = arena.persistent("skipped", DType::i32, {1});
  if (stream.type() == DeviceType::cuda)
    pinned_ = PinnedInputs(stream.device(), 2 * kMemoryAlignment + aligned(bias_corrections_.bytes()));
  if (shape.spikes.sigma <= 0) return;
  spikes_ = {.loss_sum = arena.persistent("loss of the step", DType::f32, {1}),
             .window = arena.persistent("spike window", DType::f32, {2, shape.spikes.window}),
             .known = arena.persistent("spike window's steps", DType::i64, {1}),
             .found = arena.persistent("spike bounds", DType::f32, {4}),
             .scalars = scalars_,
             .skipped = skipped_};
  restore({});
}

void StepUpdate::begin(const StepInputs& inputs) {
  pinned_.begin();
  const std::vector<float> scalars = step_scalars(inputs),
                           corrections = bias_corrections(inputs.optimizer_step);
  upload(scalars.data(), scalars_);
  upload(corrections.data(), bias_corrections_);
  upload(&inputs.optimizer_step, step_);
}

std::vector<float> StepUpdate::bias_corrections(int64_t step) const {
  std::vector<float> out;
  for (const int64_t begun : begun_) {
    const auto t = static_cast<double>(step - begun);
    for (const float beta : {shape_.adamw.beta1, shape_.adamw.beta2})
      out.push_back(static_cast<float>(1 - std::pow(beta, t)));
  }
  return out;
}

void StepUpdate::upload(const void* host, const Tensor& device) {
  if (stream_.is_meta()) return;
  copy(stream_,
       stream_.type() == DeviceType::cuda ? pinned_.hold(host, device)
                                          : Tensor{const_cast<void*>(host), device.dtype, device.shape},
       device);
}

void StepUpdate::run(const StepContext& c, const Tensor& loss_sum) {
  find_gradient_factor(c, loss_sum);
  if (muon_.buckets().empty()) return update_by_adamw(c);
  {
    StepContext::Scope scope(c, "muon");
    muon_.begin(scalars_);
  }
  update_by_adamw(c);
  StepContext::Scope scope(c, "muon");
  finish_muon();
}

void StepUpdate::finish_muon() {
  std::vector<MuonUpdate::Training> training(table_.specs.size());
  for (int p = 0; p < std::ssize(table_.specs); ++p) {
    if (table_.specs[p].rule == UpdateRule::muon)
      training[p] = {shape_.groups[p].weight_decay, shape_.groups[p].lr_factor, updated_amax(p)};
  }
  muon_.finish(scalars_, training);
}

void StepUpdate::read(StepOutputs& out) {
  std::array<float, kStepScalars> scalars{};
  int32_t skipped = 0;
  copy_to_host(stream_, scalars_, scalars.data());
  copy_to_host(stream_, skipped_, &skipped);
  if (!spikes_.window.empty()) {
    out.spikes.values.resize(spikes_.window.numel());
    copy_to_host(stream_, spikes_.window, out.spikes.values.data());
    copy_to_host(stream_, spikes_.known, &out.spikes.known);
    copy_to_host(stream_, spikes_.found, out.spike.data());
  }
  stream_.synchronize();
  out.grad_norm = scalars[kGradientNorm];
  out.why = static_cast<Skip>(skipped);
  out.skipped = out.why != kNotSkipped;
}

void StepUpdate::find_gradient_factor(const StepContext& c, const Tensor& loss_sum) {
  StepContext::Scope scope(c, "optimizer");
  std::vector<Tensor> counted = parameters_.counted_gradients();
  std::vector<Shape> shapes;
  for (const Tensor& g : counted) shapes.push_back(g.shape);
  Allocation workspace = c.scratch("gradient norm", DType::f64, grad_norm_workspace(shapes));
  grad_norm_squared(stream_, counted, sum_of_squares_, workspace);
  share_norm();
  clip_factor(stream_, sum_of_squares_, shape_.max_norm, scalars_, skipped_);
  if (!spikes_.window.empty()) skip_spikes(loss_sum);
  if (float8_) parameters_.float8()->begin_update(stream_);
}

// One sum over all ranks, so that all decide alike; ranks that see the same tokens add nothing.
void StepUpdate::skip_spikes(const Tensor& loss_sum) {
  if (ranks_.tensor_parallel.rank() == 0) {
    copy(stream_, loss_sum, spikes_.loss_sum);
  } else {
    fill_zero(stream_, spikes_.loss_sum);
  }
  if (ranks_.world->size() > 1) {
    ranks_.world->all_reduce(stream_, {.send = spikes_.loss_sum, .label = "loss of the step"}).wait(stream_);
  }
  skip_spike(stream_, spikes_, shape_.spikes);
}

void StepUpdate::restore(const SpikeWindow& window) {
  if (spikes_.window.empty() || stream_.is_meta()) return;
  const bool fits = std::ssize(window.values) == spikes_.window.numel();
  std::vector<float> values(spikes_.window.numel());
  if (fits) values = window.values;
  int64_t known = fits ? window.known : 0;
  copy_from_host(stream_, values.data(), spikes_.window);
  copy_from_host(stream_, &known, spikes_.known);
  stream_.synchronize();
}

void StepUpdate::restore_begun(const MomentsBegun& begun) {
  for (size_t p = 0; p < begun_.size(); ++p) {
    const auto found = begun.find(table_.specs[p].name);
    begun_[p] = found == begun.end() ? 0 : found->second;
  }
}

Tensor StepUpdate::updated_amax(int parameter) {
  return float8_ ? parameters_.float8()->updated_amax(parameter) : Tensor{};
}

void StepUpdate::update_by_adamw(const StepContext& c) {
  StepContext::Scope scope(c, "optimizer");
  std::vector<AdamwTensor> tensors;
  for (int p = 0; p < std::ssize(table_.specs); ++p) {
    const ParameterShard& s = parameters_.shard(p);
    if (s.master.numel() == 0 || table_.specs[p].rule != UpdateRule::adamw) continue;
    const ParameterTraining training = shape_.groups.empty() ? ParameterTraining{} : shape_.groups[p];
    const Tensor correction = bias_corrections_.slice(p, p + 1).reshape({2});
    for (const NumberedRows& rows : numbered_rows(parameters_.specs()[p], parameters_.coordinates(), s)) {
      const auto of = [&](const Tensor& t) { return t.slice(rows.begin, rows.end); };
      tensors.push_back({.master = of(s.master),
                         .gradient = of(s.gradient),
                         .exp_avg = of(s.moments[Moment::exp_avg]),
                         .exp_avg_sq = of(s.moments[Moment::exp_avg_sq]),
                         .compute = s.has_compute_copy ? of(s.compute) : Tensor{},
                         .bias_correction = correction,
                         .amax = updated_amax(p),
                         .weight_decay = training.weight_decay,
                         .lr_factor = training.lr_factor,
                         .key = static_cast<uint64_t>(p),
                         .first_element = rows.first_element});
    }
  }
  adamw(stream_, tensors, shape_.adamw, scalars_, step_);
}

// FP8 saturates: an infinity in an operand may leave the gradients finite. So the flags of this rank's
// operands make the norm NaN. Replicas, whose norms are equal otherwise, take the largest of both halves of
// their bits, in which NaN wins.
void StepUpdate::share_norm() {
  if (float8_) {
    fp8::poison_if_raised(stream_, float8_->all_non_finite(), sum_of_squares_);
    fp8::poison_if_raised(stream_, parameters_.float8()->non_finite(), sum_of_squares_);
  }
  parameters_.all_reduce_norm(sum_of_squares_);
  if (!float8_ || ranks_.dp_replicate->size() == 1) return;
  const Tensor halves{sum_of_squares_.data, DType::u32, {2}};
  ranks_.dp_replicate->all_reduce(stream_, {.send = halves, .op = ReduceOp::max, .label = "gradient norm"})
      .wait(stream_);
}

}  // namespace ottava
