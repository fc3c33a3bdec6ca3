#include "parallel/fsdp.h"

#include <algorithm>
#include <utility>

#include "core/initialise.h"
#include "core/ops/elementwise.h"

namespace ottava {
namespace {

// Fills one rectangle of a part. Whole rows are one call: the common case, and vectors are rows of one element.
void fill_run(const ParameterSpec& spec, const ShardRun& run, float* shard, int64_t shard_columns, uint64_t seed) {
  const ParameterPart& part = spec.parts[static_cast<size_t>(run.part)];
  const int64_t width = run.column_end - run.column_begin;
  float* out = shard + run.local_row * shard_columns;
  const int64_t rows = run.row_end - run.row_begin;
  if (part.init.kind == Initialisation::Kind::ones) return std::fill(out, out + rows * width, 1.0f);
  if (part.init.std == 0) return std::fill(out, out + rows * width, 0.0f);
  NormalInitialisation how{.seed = seed, .name = part.hf_name, .std = part.init.std,
                           .cut = part.init.kind == Initialisation::Kind::truncated_normal ? part.init.cut : 0};
  if (width == spec.columns) return fill_normal(out, run.row_begin * width, rows * width, how);
  for (int64_t r = 0; r < rows; ++r) {
    fill_normal(out + r * width, (run.row_begin + r) * spec.columns + run.column_begin, width, how);
  }
}

Shape shard_shape(const ParameterSpec& spec, Shape slice, int64_t rows) {
  return spec.is_vector ? Shape{rows} : Shape{rows, slice[1]};
}

}  // namespace

Fsdp::Fsdp(Stream& stream, Arena& arena, std::vector<ParameterSpec> specs, ShardCoordinates at, FsdpOptions options)
    : stream_(stream), specs_(std::move(specs)), at_(at), options_(options), touched_(specs_.size(), false) {
  for (const ParameterSpec& spec : specs_) {
    ParameterShard s;
    s.slice = tensor_parallel_shape(spec, at.tp_size);
    s.rows = shard_rows(s.slice[0], at.shard_rank, at.shard_size);
    Shape shape = shard_shape(spec, s.slice, s.rows.size());
    s.master = arena.persistent(spec.name + ".master", DType::f32, shape, MemoryCategory::parameters);
    s.compute = options.compute == DType::f32
                    ? s.master
                    : arena.persistent(spec.name, options.compute, shape, MemoryCategory::compute);
    if (options.trains) {
      s.gradient = arena.persistent(spec.name + ".gradient", DType::f32, shape, MemoryCategory::gradients);
      s.exp_avg = arena.persistent(spec.name + ".exp_avg", options.optimizer_state, shape, MemoryCategory::optimizer);
      s.exp_avg_sq = arena.persistent(spec.name + ".exp_avg_sq", options.optimizer_state, shape, MemoryCategory::optimizer);
    }
    shards_.push_back(s);
  }
}

void Fsdp::initialise(uint64_t seed) {
  std::vector<float> host;
  for (size_t p = 0; p < specs_.size(); ++p) {
    const ParameterShard& s = shards_[p];
    if (s.master.numel() == 0) continue;
    bool on_host = stream_.type() == DeviceType::cpu;
    host.resize(on_host ? 0 : static_cast<size_t>(s.master.numel()));
    float* out = on_host ? s.master.as<float>() : host.data();
    for (const ShardRun& run : shard_runs(specs_[p], at_)) fill_run(specs_[p], run, out, s.master.shape.rank() == 2 ? s.master.cols() : 1, seed);
    if (!on_host) {
      cast(stream_, view_of(host.data(), s.master.shape), s.master);
      stream_.synchronize();
    }
  }
  refresh_compute_copies();
}

void Fsdp::refresh_compute_copies() {
  for (const ParameterShard& s : shards_) {
    if (options_.compute != DType::f32) cast(stream_, s.master, s.compute);
  }
}

void Fsdp::begin_step() { touched_.assign(specs_.size(), false); }
void Fsdp::prefetch(int) {}
void Fsdp::unshard(int) {}
void Fsdp::reshard(int) {}

Tensor Fsdp::weight(int parameter) const { return shard(parameter).compute; }

Fsdp::Gradient Fsdp::gradient(int parameter) {
  auto index = static_cast<size_t>(parameter);
  bool accumulate = touched_[index];
  touched_[index] = true;
  return {shards_[index].gradient, accumulate};
}

Tensor Fsdp::zeroed_gradient(int parameter) {
  Gradient g = gradient(parameter);
  if (!g.accumulate) fill_zero(stream_, g.tensor);
  return g.tensor;
}

void Fsdp::reduce_gradients(int) {}

void Fsdp::finish_gradients() {
  for (size_t p = 0; p < specs_.size(); ++p) {
    if (!touched_[p]) fill_zero(stream_, shards_[p].gradient);
  }
}

}  // namespace ottava
