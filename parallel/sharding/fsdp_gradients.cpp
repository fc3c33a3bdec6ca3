// The gradients of Fsdp: where products put them, how ranks sum them.
#include <utility>

#include "core/ops/elementwise.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

Fsdp::Gradient Fsdp::gradient(int parameter) {
  if (!is_sharded()) {
    const bool accumulate = summed_[parameter];
    summed_[parameter] = true;
    return {shard(parameter).gradient, accumulate};
  }
  Allocation& whole = whole_[parameter].gradient;
  const bool accumulate = static_cast<bool>(whole);
  if (!accumulate) {
    whole = arena_.allocate(specs_[parameter].name + ".gradient", DType::f32, shard(parameter).slice,
                            MemoryCategory::unsharded);
  }
  return {whole, accumulate};
}

Tensor Fsdp::zeroed_gradient(int parameter) {
  Gradient g = gradient(parameter);
  if (!g.accumulate) fill_zero(stream_, g.tensor);
  return g.tensor;
}

void Fsdp::reduce_gradients(int unit) {
  if (!is_sharded()) {
    if (is_last_micro_batch_) sum_over_copies(unit);
  } else if (is_last_micro_batch_ || options_.reduce_every_micro_batch) {
    complete_reduction();
    scatter_gradients(unit);
  }
}

bool Fsdp::exchanges_gradient(int p) const {
  return options_.trains && options_.float8_gradients && is_sharded() && shards_[p].is_held &&
         Float8Exchange::takes(specs_[p], shards_[p].slice, ranks_.dp_shard->size());
}

Allocation Fsdp::in_reduce_type(const Tensor& gradient, const std::string& name) {
  Allocation converted = arena_.allocate(name, options_.reduce, gradient.shape, MemoryCategory::unsharded);
  cast(stream_, gradient, converted);
  return converted;
}

void Fsdp::scatter_gradients(int index) {
  Unit& unit = units_[index];
  Reduction r;
  r.unit = index;
  r.is_last = is_last_micro_batch_;
  if (unit.packing) {
    // longer than that of the weights, of which FP8 takes some
    const int64_t segment = unit.packing->segment_elements();
    r.pack = arena_.allocate("packed.gradient", options_.reduce, {segment * ranks_.dp_shard->size()},
                             MemoryCategory::unsharded);
    fill_zero(stream_, r.pack);
    for (size_t i = 0; i < unit.packed.size(); ++i) {
      Allocation& gradient = whole_[unit.packed[i]].gradient;
      if (gradient) unit.packing->pack(stream_, gradient, i, r.pack);
      gradient.release();
    }
    r.pack_sum = arena_.allocate("packed.sum", options_.reduce, {segment}, MemoryCategory::unsharded);
  }
  for (int p : unit.parameters) {
    Allocation gradient = std::exchange(whole_[p].gradient, {});
    if (!gradient) continue;
    const std::string& name = specs_[p].name;
    if (exchanges_gradient(p)) {
      r.exchanges.emplace_back(p, Float8Exchange(stream_, arena_, name, gradient, ranks_.dp_shard->size(),
                                                 float8_->gradient_flag()));
      continue;
    }
    const bool in_place = options_.reduce == DType::f32;
    Sum& s =
        r.sums.emplace_back(Sum{p, in_place ? gradient : in_reduce_type(gradient, name + ".reduced"), {}});
    if (summed_[p] || !in_place) {
      s.sum =
          arena_.allocate(name + ".sum", options_.reduce, shard(p).gradient.shape, MemoryCategory::unsharded);
    }
  }
  Group group(*ranks_.dp_shard);
  if (unit.packing) {
    ranks_.dp_shard->reduce_scatter(stream_,
                                    {.send = r.pack, .recv = r.pack_sum, .label = "packed.gradient"});
  }
  for (const auto& [p, source, sum] : r.sums) {
    ranks_.dp_shard->reduce_scatter(
        stream_, {.send = source, .recv = sum ? sum.tensor() : shard(p).gradient, .label = specs_[p].name});
  }
  for (const auto& [p, exchange] : r.exchanges) exchange.start(stream_, *ranks_.dp_shard, specs_[p].name);
  r.request = group.end();
  pending_ = std::move(r);
}

void Fsdp::take_sum(int parameter, const Tensor& sum) {
  const Tensor& gradient = shard(parameter).gradient;
  if (gradient.numel() > 0) {
    if (!summed_[parameter]) {
      cast(stream_, sum, gradient);
    } else if (sum.dtype == DType::f32) {
      add(stream_, gradient, sum, gradient);
    } else {
      Allocation wide = arena_.allocate("sum", DType::f32, sum.shape, MemoryCategory::scratch);
      cast(stream_, sum, wide);
      add(stream_, gradient, wide, gradient);
    }
  }
  summed_[parameter] = true;
}

void Fsdp::complete_reduction() {
  if (pending_.unit < 0) return;
  Reduction r = std::exchange(pending_, {});
  r.request.wait(stream_);
  Unit& unit = units_[r.unit];
  for (size_t i = 0; i < unit.packed.size(); ++i) {
    take_sum(unit.packed[i], unit.packing->shard_view(r.pack_sum, i, coordinates().shard_rank));
  }
  for (const auto& [p, source, sum] : r.sums) {
    if (sum) take_sum(p, sum);
    summed_[p] = true;
  }
  for (auto& [p, exchange] : r.exchanges) {
    exchange.finish(stream_, arena_, shard(p).gradient, summed_[p]);
    summed_[p] = true;
  }
  if (r.is_last) sum_over_copies(r.unit);
}

// Copies of a shard on other ranks: norms on every tensor-parallel rank, shared key/value heads, replicas.
void Fsdp::sum_over_copies(int index) {
  const ShardCoordinates& at = coordinates();
  const bool has_replicas = ranks_.dp_replicate->size() > 1;
  Group between_slices(*ranks_.tp);
  for (int p : units_[index].parameters) {
    const ParameterSpec& spec = specs_[p];
    const Tensor& gradient = shard(p).gradient;
    if (gradient.numel() == 0) continue;
    if (spec.tensor_parallel == TensorParallel::replicate && at.tp_size > 1)
      ranks_.tp->all_reduce(stream_, {.send = gradient, .label = spec.name});
    for (const ShardRun& run : shard_runs(spec, at)) {
      if (ranks_that_share(spec, spec.parts[run.part], at.tp_size) == 1) continue;
      copy_sums_.push_back(
          head_sharers_->all_reduce(stream_, {.send = run.of(gradient), .label = spec.name}));
    }
  }
  const Request sums = between_slices.end();
  // What replicas sum next is in another lane.
  has_replicas ? sums.wait(stream_) : copy_sums_.push_back(sums);
  if (has_replicas) sum_over_replicas(index);
}

// f32 is reduced in place, after the sums above, since calls of a lane keep their order. Other types need
// copies, of one unit at a time, which are converted from those sums. In one group, since most of a unit's
// parameters are small and each call between machines takes tens of microseconds.
void Fsdp::sum_over_replicas(int index) {
  const bool in_place = options_.reduce == DType::f32;
  if (!in_place) finish_copy_sums();
  Group group(*ranks_.dp_replicate);
  for (int p : units_[index].parameters) {
    const std::string& name = specs_[p].name;
    const Tensor& gradient = shard(p).gradient;
    if (gradient.numel() == 0) continue;
    Allocation copy;
    if (!in_place) copy = in_reduce_type(gradient, name + ".replica sum");
    ranks_.dp_replicate->all_reduce(stream_, {.send = in_place ? gradient : copy.tensor(), .label = name});
    if (!in_place) replica_sums_.emplace_back(p, std::move(copy));
  }
  copy_sums_.push_back(group.end());
}

void Fsdp::finish_copy_sums() {
  for (Request& request : copy_sums_) request.wait(stream_);
  copy_sums_.clear();
  for (auto& [p, sum] : replica_sums_) cast(stream_, sum, shard(p).gradient);
  replica_sums_.clear();
}

void Fsdp::finish_gradients() {
  complete_reduction();
  finish_copy_sums();
  for (size_t p = 0; p < specs_.size(); ++p) {
    if (!summed_[p] && shards_[p].is_held) fill_zero(stream_, shards_[p].gradient);
  }
}

std::vector<Tensor> Fsdp::counted_gradients() const {
  std::vector<Tensor> counted;
  for (size_t p = 0; p < specs_.size(); ++p) {
    for (const ShardRun& run : shard_runs(specs_[p], coordinates())) {
      if (run.is_owner) counted.push_back(run.of(shards_[p].gradient));
    }
  }
  return counted;
}

void Fsdp::all_reduce_norm(const Tensor& sum_of_squares) {
  if (ranks_.replica->size() == 1) return;
  ranks_.replica->all_reduce(stream_, {.send = sum_of_squares, .label = "gradient norm"}).wait(stream_);
}

}  // namespace ottava
