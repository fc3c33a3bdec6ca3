#include "parallel/sharding/fsdp.h"

#include <algorithm>
#include <utility>

#include "core/contains.h"
#include "core/ops/elementwise.h"
#include "parallel/comm/all_ranks.h"
#include "parallel/sharding/initialise_shard.h"

namespace ottava {

void align_shards(std::vector<ParameterSpec>& specs, const FsdpOptions& options) {
  for (const Float8WeightSpec& weight : options.float8.specs) {
    ParameterSpec& spec = specs[weight.parameter];
    spec.shard_alignment =
        std::max(spec.shard_alignment, float8_weight_travel(weight, spec.rows(), 1).alignment);
  }
}

std::vector<bool> replaced_by_float8(const std::vector<ParameterSpec>& specs, const FsdpOptions& options,
                                     const ShardCoordinates& at) {
  std::vector<bool> replaced(specs.size(), false);
  for (const Float8WeightSpec& weight : options.float8.specs) {
    const size_t p = weight.parameter;
    const int64_t rows = tensor_parallel_shape(specs[p], at.tp_size)[0];
    replaced[p] = weight.rows.size() == rows &&
                  (at.shard_size == 1 || float8_weight_travel(weight, rows, at.shard_size).in_codes) &&
                  specs[p].role == ParameterRole::linear;
  }
  return replaced;
}

std::vector<std::vector<size_t>> kept_instead_of_weights(const std::vector<ParameterSpec>& specs,
                                                         const Float8Weights::Options& float8,
                                                         const ShardCoordinates& at) {
  std::vector<std::vector<size_t>> kept(specs.size());
  if (!float8.keeps_codes || at.shard_size == 1) return kept;
  std::vector<int64_t> rows(specs.size());
  for (size_t i = 0; i < float8.specs.size(); ++i) {
    const size_t p = float8.specs[i].parameter;
    const int64_t all = tensor_parallel_shape(specs[p], at.tp_size)[0];
    if (specs[p].role != ParameterRole::linear ||
        float8_weight_travel(float8.specs[i], all, at.shard_size).in_codes)
      continue;
    kept[p].push_back(i);
    rows[p] += float8.specs[i].rows.size();
  }
  for (size_t p = 0; p < specs.size(); ++p) {
    if (rows[p] < tensor_parallel_shape(specs[p], at.tp_size)[0]) kept[p].clear();
  }
  return kept;
}

Fsdp::Fsdp(Stream& stream, Arena& arena, RankGroups& ranks, std::vector<ParameterSpec> specs,
           FsdpOptions options)
    : stream_(stream),
      arena_(arena),
      ranks_(ranks),
      specs_(std::move(specs)),
      options_(options),
      shards_(specs_.size()),
      whole_(specs_.size()),
      summed_(specs_.size(), false) {
  align_shards(specs_, options_);
  replaced_ = replaced_by_float8(specs_, options_, coordinates());
  for (size_t p = 0; p < specs_.size(); ++p) {
    size_t unit = specs_[p].unit;
    if (units_.size() <= unit) units_.resize(unit + 1);
    units_[unit].parameters.push_back(static_cast<int>(p));
    shards_[p].slice = tensor_parallel_shape(specs_[p], coordinates().tp_size);
    shards_[p].is_held = coordinates().holds(specs_[p].unit);
    if (!shards_[p].is_held) continue;
    shards_[p].rows = shard_rows(shards_[p].slice[0], coordinates().shard_rank, coordinates().shard_size,
                                 specs_[p].shard_alignment);
  }
  if (!options_.float8.specs.empty()) place_float8(arena);
  for (size_t u = 0; u < units_.size(); ++u) place_unit(arena, units_[u], static_cast<int>(u));
  find_shared_heads();
  for (size_t p = 0; p < specs_.size(); ++p)
    if (exchanges_gradient(static_cast<int>(p)))
      ranks_.dp_shard->connect_pairs(all_ranks(ranks_.dp_shard->size()));
}

void Fsdp::place_float8(Arena& arena) {
  Float8Weights::Options options = options_.float8;
  options.keeps_codes = options_.keeps_float8_codes && options_.reshard != FsdpOptions::Reshard::never;
  float8_ = std::make_unique<Float8Weights>(arena, ranks_, shards_, options, stream_.target());
  kept_ = kept_instead_of_weights(specs_, options, coordinates());
  for (size_t i = 0; i < options_.float8.specs.size(); ++i) {
    const Float8WeightSpec& spec = options_.float8.specs[i];
    const int64_t rows = shards_[spec.parameter].slice[0];
    const int held = specs_[spec.parameter].unit;
    if (!coordinates().holds(held) || !is_sharded() ||
        !float8_weight_travel(spec, rows, coordinates().shard_size).in_codes)
      continue;
    Unit& unit = units_[held];
    unit.float8.push_back(i);
    if (!float8_->shares_codes(i)) unit.portions |= kForwardCodes | kBackwardCodes;
  }
}

void Fsdp::place_unit(Arena& arena, Unit& unit, int index) {
  std::vector<ShardPacking::Item> gradients, weights;
  for (int p : unit.parameters) {
    const ShardPacking::Item item{shard(p).slice, specs_[p].shard_alignment};
    if (!coordinates().holds(index) || !is_sharded() ||
        !ShardPacking::wants(item, coordinates().shard_size, options_.compute, options_.packs_below_bytes))
      continue;
    unit.packed.push_back(p);
    gradients.push_back(item);
    if (replaced_[p]) continue;
    unit.packed_weights.push_back(p);
    weights.push_back(item);
  }
  if (!gradients.empty()) unit.packing = std::make_unique<ShardPacking>(gradients, coordinates().shard_size);
  if (!weights.empty()) {
    unit.weight_packing = std::make_unique<ShardPacking>(weights, coordinates().shard_size);
    unit.pack = arena.persistent(fmt::format("unit {} packed", index), options_.compute,
                                 {unit.weight_packing->segment_elements()}, MemoryCategory::compute);
  }
  for (int p : unit.parameters) place_shard(arena, p, unit);
}

void Fsdp::place_shard(Arena& arena, int p, const Unit& unit) {
  const std::string& name = specs_[p].name;
  ParameterShard& s = shards_[p];
  const Shape shape = s.slice.with_first(s.rows.size());
  s.master = arena.persistent(name + ".master", DType::f32, shape, MemoryCategory::parameters);
  const bool is_replaced = replaced_[p];
  auto in_pack = std::ranges::find(unit.packed_weights, p);
  if (in_pack != unit.packed_weights.end()) {
    s.compute = unit.weight_packing->shard_view(unit.pack, in_pack - unit.packed_weights.begin(),
                                                coordinates().shard_rank);
  } else if (options_.compute == DType::f32 || is_replaced) {
    s.compute = s.master;
  } else {
    s.compute = arena.persistent(name, options_.compute, shape, MemoryCategory::compute);
  }
  s.has_compute_copy =
      in_pack != unit.packed_weights.end() || (options_.compute != DType::f32 && !is_replaced);
  if (!options_.trains) return;
  s.gradient = arena.persistent(name + ".gradient", DType::f32, shape, MemoryCategory::gradients);
  for (const MomentTraits& m : moments_of(specs_[p].rule)) {
    s.moments[m.moment] =
        arena.persistent(fmt::format("{}.{}", name, m.name), m.dtype(options_.optimizer_state), shape,
                         MemoryCategory::optimizer);
  }
}

// Key/value heads that several tensor-parallel ranks hold get their gradients from each rank's own query
// heads.
void Fsdp::find_shared_heads() {
  const int tp_size = coordinates().tp_size;
  int count = 1;
  for (const ParameterSpec& spec : specs_) {
    for (const ParameterPart& part : spec.parts)
      count = std::max(count, ranks_that_share(spec, part, tp_size));
  }
  if (count > 1) head_sharers_ = &ranks_.head_sharers(count);
}

void Fsdp::initialise(uint64_t seed) {
  for (size_t p = 0; p < specs_.size(); ++p) {
    const ParameterShard& s = shards_[p];
    initialise_shard(stream_, specs_[p], coordinates(), seed, s.master);
  }
  clear_moments();
  refresh_compute_copies();
}

void Fsdp::clear_moments() {
  for (size_t p = 0; p < specs_.size(); ++p) {
    for (const MomentTraits& m : moments_of(specs_[p].rule)) {
      const Tensor& moment = shards_[p].moments[m.moment];
      if (moment.numel() > 0 && !moment.empty()) fill_zero(stream_, moment);
    }
  }
}

void Fsdp::refresh_compute_copies() {
  for (const ParameterShard& s : shards_) {
    if (s.has_compute_copy && s.master.numel() > 0) cast(stream_, s.master, s.compute);
  }
  if (float8_) float8_->weights_changed();
}

void Fsdp::begin_step() {
  summed_.assign(specs_.size(), false);
  is_forward_only_ = false;
  if (float8_) float8_->refresh(stream_);
}
void Fsdp::begin_micro_batch(bool is_last) { is_last_micro_batch_ = is_last; }
void Fsdp::begin_forward_only() {
  is_forward_only_ = true;
  if (float8_) float8_->refresh(stream_, WeightUse::forward);
}

bool Fsdp::is_needless(int p) const {
  if (!float8_ || kept_[p].empty()) return false;
  const std::vector<size_t>& entries = kept_[p];
  return std::ranges::all_of(entries, [&](size_t entry) { return float8_->holds_codes(entry); });
}

void Fsdp::gather_base(Unit& unit) {
  for (int p : unit.parameters) {
    if (replaced_[p] || (is_needless(p) && !contains(unit.packed, p))) continue;
    const ParameterShard& s = shard(p);
    const std::string& name = specs_[p].name;
    whole_[p].weight = arena_.allocate(name + ".whole", options_.compute, s.slice, MemoryCategory::unsharded);
    if (contains(unit.packed, p)) continue;
    ranks_.dp_shard->all_gather(stream_, {.send = s.compute, .recv = whole_[p].weight, .label = name});
  }
  if (unit.weight_packing) {
    unit.gathered_pack =
        arena_.allocate("packed.whole", options_.compute, {unit.pack.numel() * ranks_.dp_shard->size()},
                        MemoryCategory::unsharded);
    ranks_.dp_shard->all_gather(stream_, {.send = unit.pack, .recv = unit.gathered_pack, .label = "packed"});
  }
}

void Fsdp::start_gather(int index, WeightUse use) {
  if (!is_sharded()) return;
  Unit& unit = units_[index];
  unsigned wanted = kBase;
  if (includes(use, WeightUse::forward)) wanted |= kForwardCodes;
  if (includes(use, WeightUse::backward)) wanted |= kBackwardCodes;
  const unsigned missing = wanted & unit.portions & ~(unit.gathering | unit.whole);
  if (missing == 0) return;
  Group group(*ranks_.dp_shard);
  if (missing & kBase) gather_base(unit);
  for (size_t entry : unit.float8) {
    const bool two = !float8_->shares_codes(entry);
    if (missing & (two ? kForwardCodes : kBase)) float8_->gather(stream_, entry, WeightUse::forward);
    if (two && (missing & kBackwardCodes)) float8_->gather(stream_, entry, WeightUse::backward);
  }
  unit.gathers.push_back(group.end());
  unit.gathering |= missing;
}

void Fsdp::gather_all(std::span<const WeightUse> uses) {
  for (size_t unit = 0; unit < units_.size(); ++unit)
    if (coordinates().holds(static_cast<int>(unit))) start_gather(static_cast<int>(unit), uses[unit]);
}

void Fsdp::prefetch(int after, int last, std::span<const WeightUse> uses) {
  const int step = last < after ? -1 : 1;
  for (int i = 0, unit = after; i < options_.prefetch && unit != last; ++i) {
    unit += step;
    start_gather(unit, uses.empty() ? WeightUse::forward : uses[unit]);
  }
}

void Fsdp::unshard(int index, WeightUse use) {
  start_gather(index, use);
  Unit& unit = units_[index];
  if (unit.gathering == 0) return;
  for (Request& gather : unit.gathers) gather.wait(stream_);
  unit.gathers.clear();
  if (unit.gathering & kBase) {
    for (size_t i = 0; i < unit.packed_weights.size(); ++i) {
      unit.weight_packing->unpack(stream_, unit.gathered_pack, i, whole_[unit.packed_weights[i]].weight);
    }
    unit.gathered_pack.release();
  }
  unit.whole |= std::exchange(unit.gathering, 0u);
}

void Fsdp::reshard(int unit) {
  if (options_.reshard != FsdpOptions::Reshard::never || is_forward_only_) release_whole(unit);
}

void Fsdp::release_whole(int index) {
  Unit& unit = units_[index];
  if (unit.whole == 0) return;
  for (int p : unit.parameters) whole_[p].weight.release();
  for (size_t i = 0; i < options_.float8.specs.size(); ++i) {
    if (specs_[options_.float8.specs[i].parameter].unit == index) float8_->release(i);
  }
  unit.whole = 0;
}

void Fsdp::weights_changed() {
  for (size_t u = 0; u < units_.size(); ++u) release_whole(static_cast<int>(u));
  if (float8_) float8_->weights_changed();
}

fp8::Float8Tensor Fsdp::float8_weight(size_t entry, WeightUse use) {
  const int p = options_.float8.specs[entry].parameter;
  return float8_->operand(stream_, entry, use, replaced_[p] ? Tensor{} : weight(p));
}

Tensor Fsdp::weight(int parameter) const {
  return is_sharded() ? whole_[parameter].weight.tensor() : shard(parameter).compute;
}

}  // namespace ottava
