#include "parallel/sharding/traffic.h"

#include <algorithm>

namespace ottava {
namespace {

struct UnitSize {
  int64_t elements = 0;  ///< padding included
  int64_t calls = 0;     ///< collectives that move them
};
/// What one collective after another moves of a unit.
struct UnitGathers {
  UnitSize compute;  ///< in the compute type
  UnitSize both;     ///< FP8 bytes and scales, in bytes: those that forward and backward share
  UnitSize forward, backward;
};
struct UnitTraffic {
  UnitGathers gathers;
  UnitSize reductions;
  UnitSize exchanges;  ///< gradients as FP8 bytes with scales, in bytes
};

void add_packed(UnitSize& size, const std::vector<ShardPacking::Item>& packed, int shards) {
  if (packed.empty()) return;
  size.elements += ShardPacking(packed, shards).segment_elements() * shards;
  ++size.calls;
}

/// Bytes of one form of a weight, gathered with padding, and its scales where they travel.
void add_float8(UnitSize& size, const fp8::OperandRecipe& recipe, WeightUse use, bool scales_travel,
                const Shape& weight) {
  size.elements += weight.numel();
  ++size.calls;
  if (!scales_travel) return;
  size.elements += travelling_scales(recipe, use, weight.rows(), weight.cols()).numel() *
                   static_cast<int64_t>(size_of(fp8::scale_dtype(recipe.granularity)));
  ++size.calls;
}

std::vector<UnitTraffic> unit_traffic(std::span<const ParameterSpec> specs, const FsdpOptions& options,
                                      const ShardCoordinates& at) {
  std::vector<UnitTraffic> units;
  std::vector<std::vector<ShardPacking::Item>> gradients, weights;
  const std::vector<bool> replaced = replaced_by_float8({specs.begin(), specs.end()}, options, at);
  for (size_t p = 0; p < specs.size(); ++p) {
    const auto u = static_cast<size_t>(specs[p].unit);
    if (units.size() <= u) units.resize(u + 1), gradients.resize(u + 1), weights.resize(u + 1);
    const ShardPacking::Item item{tensor_parallel_shape(specs[p], at.tp_size), specs[p].shard_alignment};
    if (ShardPacking::wants(item, at.shard_size, options.compute)) {
      gradients[u].push_back(item);
      if (!replaced[p]) weights[u].push_back(item);
      continue;
    }
    const bool exchanged =
        options.float8_gradients && Float8Exchange::takes(specs[p], item.slice, at.shard_size);
    if (exchanged) {
      units[u].exchanges.elements +=
          Float8Exchange::chunk_bytes(item.slice.numel()) + Float8Exchange::scale_bytes(item.slice.numel());
      units[u].exchanges.calls += 2;
    }
    for (UnitSize* size : {&units[u].reductions, &units[u].gathers.compute}) {
      if (size == &units[u].gathers.compute ? replaced[p] : exchanged) continue;
      size->elements += item.slice.numel();
      ++size->calls;
    }
  }
  for (size_t u = 0; u < units.size(); ++u) {
    add_packed(units[u].reductions, gradients[u], at.shard_size);
    add_packed(units[u].gathers.compute, weights[u], at.shard_size);
  }
  for (const Float8WeightSpec& weight : options.float8.specs) {
    const ParameterSpec& spec = specs[static_cast<size_t>(weight.parameter)];
    const Shape slice = tensor_parallel_shape(spec, at.tp_size);
    const Float8WeightTravel travel = float8_weight_travel(weight, slice[0], at.shard_size);
    if (!travel.in_codes) continue;
    const int64_t rows = largest_shard_rows(slice[0], at.shard_size, spec.shard_alignment) * at.shard_size;
    UnitGathers& gathers = units[static_cast<size_t>(spec.unit)].gathers;
    const Shape whole{rows, slice[1]};
    add_float8(travel.shares_codes ? gathers.both : gathers.forward, weight.forward, WeightUse::forward,
               travel.forward_scales, whole);
    if (!travel.shares_codes)
      add_float8(gathers.backward, weight.backward, WeightUse::backward, travel.backward_scales, whole);
  }
  return units;
}

class Recorder {
 public:
  explicit Recorder(CommStats& out) : out_(out) {}

  void shards(Collective collective, const UnitSize& unit, int64_t times, DType type, int shards) {
    const int64_t bytes = unit.elements * static_cast<int64_t>(size_of(type));
    for (int64_t i = 0; i < times; ++i) {
      // One entry has the bytes of the unit, the others stand for the calls that share them.
      for (int64_t call = 0; call < unit.calls; ++call) {
        const int64_t payload = call == 0 ? bytes : 0;
        out_.record({collective, "dp_shard", "", payload, payload / shards * (shards - 1)});
      }
    }
  }
  void copies(std::string_view axis, int64_t count, DType type, int ranks, int rank) {
    const auto element = static_cast<int64_t>(size_of(type));
    out_.record(
        {Collective::all_reduce, axis, "", count * element, all_reduce_sent(count, element, ranks, rank)});
  }

 private:
  CommStats& out_;
};

/// The amaxes of a step's weights: one all-reduce of those per tensor, one of those per column.
void add_float8_exchange(Recorder& record, std::span<const ParameterSpec> specs, const FsdpOptions& options,
                         const ShardCoordinates& at) {
  bool per_tensor = false;
  int64_t columns = 0;
  for (const Float8WeightSpec& weight : options.float8.specs) {
    for (const fp8::OperandRecipe& recipe : {weight.forward, weight.backward})
      per_tensor |= fp8::traits(recipe.granularity).amax == fp8::AmaxSource::given;
    if (weight.gathers_codes && at.shard_size > 1 &&
        fp8::traits(weight.backward.granularity).needs_column_amax) {
      columns += tensor_parallel_shape(specs[static_cast<size_t>(weight.parameter)], at.tp_size)[1];
    }
  }
  const int replica = at.shard_size * at.tp_size;
  const auto slots = static_cast<int64_t>(options.float8.specs.size());
  if (per_tensor && replica > 1)
    record.copies("replica", slots, DType::u32, replica, at.shard_rank * at.tp_size + at.tp_rank);
  if (columns > 0) record.copies("dp_shard", columns, DType::u32, at.shard_size, at.shard_rank);
}

}  // namespace

int ranks_that_share(const ParameterSpec& spec, const ParameterPart& part, int tp_size) {
  const bool is_shared = spec.tensor_parallel == TensorParallel::rows && part.groups < tp_size;
  return is_shared ? tp_size / static_cast<int>(part.groups) : 1;
}

int64_t all_reduce_sent(int64_t count, int64_t element_bytes, int ranks, int rank) {
  const int64_t slice = count * (rank + 1) / ranks - count * rank / ranks;
  return (count + (ranks - 2) * slice) * element_bytes;
}

void add_parameter_traffic(CommStats& out, std::vector<ParameterSpec> specs, const FsdpOptions& options,
                           const TrafficLayout& layout, std::span<const UnitGatherCounts> gathers) {
  align_shards(specs, options);
  const ShardCoordinates& at = layout.at;
  Recorder record(out);
  if (at.shard_size > 1) {
    const std::vector<UnitTraffic> units = unit_traffic(specs, options, at);
    const int64_t reductions = options.reduce_every_micro_batch ? layout.micro_batches : 1;
    const bool stays = options.reshard == FsdpOptions::Reshard::never;
    for (size_t u = 0; u < units.size(); ++u) {
      auto times = [&](int64_t per_micro_batch) {
        return stays ? std::min<int64_t>(1, per_micro_batch) : per_micro_batch * layout.micro_batches;
      };
      const UnitGathers& g = units[u].gathers;
      record.shards(Collective::all_gather, g.compute, times(gathers[u].total), options.compute,
                    at.shard_size);
      record.shards(Collective::all_gather, g.both, times(gathers[u].total), DType::u8, at.shard_size);
      record.shards(Collective::all_gather, g.forward, times(gathers[u].forward), DType::u8, at.shard_size);
      record.shards(Collective::all_gather, g.backward, times(gathers[u].backward), DType::u8, at.shard_size);
      record.shards(Collective::reduce_scatter, units[u].reductions, reductions, options.reduce,
                    at.shard_size);
      record.shards(Collective::all_to_all, units[u].exchanges, reductions, DType::u8, at.shard_size);
    }
  }
  add_float8_exchange(record, specs, options, at);
  if (!options.float8.specs.empty() && layout.replicas > 1)
    record.copies("dp_replicate", 2, DType::u32, layout.replicas, at.replica_rank);
  for (const ParameterSpec& spec : specs) {
    const Shape slice = tensor_parallel_shape(spec, at.tp_size);
    const int64_t columns = slice.rank() == 2 ? slice[1] : 1;
    const int64_t held =
        shard_rows(slice[0], at.shard_rank, at.shard_size, spec.shard_alignment).size() * columns;
    if (held == 0) continue;
    if (spec.tensor_parallel == TensorParallel::replicate && at.tp_size > 1)
      record.copies("tp", held, DType::f32, at.tp_size, at.tp_rank);
    for (const ShardRun& run : shard_runs(spec, at)) {
      const int sharers = ranks_that_share(spec, spec.parts[static_cast<size_t>(run.part)], at.tp_size);
      const int64_t count = (run.row_end - run.row_begin) * columns;
      if (sharers > 1) record.copies("kv_heads", count, DType::f32, sharers, at.tp_rank % sharers);
    }
    if (layout.replicas > 1)
      record.copies("dp_replicate", held, DType::f32, layout.replicas, at.replica_rank);
  }
  const int replica = at.shard_size * at.tp_size;
  if (replica > 1) record.copies("replica", 1, DType::f64, replica, at.shard_rank * at.tp_size + at.tp_rank);
}

}  // namespace ottava
