#include "parallel/traffic.h"

#include <algorithm>

namespace ottava {
namespace {

struct UnitSize {
  int64_t elements = 0;  ///< gathered whole, padding included
  int64_t calls = 0;     ///< collectives that move it
};

std::vector<UnitSize> unit_sizes(std::span<const ParameterSpec> specs, const FsdpOptions& options, const ShardCoordinates& at) {
  std::vector<UnitSize> units;
  std::vector<std::vector<Shape>> packed;
  for (const ParameterSpec& spec : specs) {
    const auto u = static_cast<size_t>(spec.unit);
    if (units.size() <= u) units.resize(u + 1), packed.resize(u + 1);
    const Shape slice = tensor_parallel_shape(spec, at.tp_size);
    if (ShardPacking::wants(slice, at.shard_size, options.compute)) {
      packed[u].push_back(slice);
    } else {
      units[u].elements += slice.numel();
      ++units[u].calls;
    }
  }
  for (size_t u = 0; u < units.size(); ++u) {
    if (packed[u].empty()) continue;
    units[u].elements += ShardPacking(packed[u], at.shard_size).segment_elements() * at.shard_size;
    ++units[u].calls;
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
    out_.record({Collective::all_reduce, axis, "", count * element, all_reduce_sent(count, element, ranks, rank)});
  }

 private:
  CommStats& out_;
};

}  // namespace

int ranks_that_share(const ParameterSpec& spec, const ParameterPart& part, int tp_size) {
  const bool is_shared = spec.tensor_parallel == TensorParallel::rows && part.groups < tp_size;
  return is_shared ? tp_size / static_cast<int>(part.groups) : 1;
}

int64_t all_reduce_sent(int64_t count, int64_t element_bytes, int ranks, int rank) {
  const int64_t slice = count * (rank + 1) / ranks - count * rank / ranks;
  return (count + (ranks - 2) * slice) * element_bytes;
}

void add_parameter_traffic(CommStats& out, std::span<const ParameterSpec> specs, const FsdpOptions& options, const TrafficLayout& layout,
                           std::span<const int> gathers) {
  const ShardCoordinates& at = layout.at;
  Recorder record(out);
  if (at.shard_size > 1) {
    const std::vector<UnitSize> units = unit_sizes(specs, options, at);
    const int64_t reductions = options.reduce_every_micro_batch ? layout.micro_batches : 1;
    for (size_t u = 0; u < units.size(); ++u) {
      const bool stays = options.reshard == FsdpOptions::Reshard::never;
      record.shards(Collective::all_gather, units[u], stays ? 1 : gathers[u] * layout.micro_batches, options.compute, at.shard_size);
      record.shards(Collective::reduce_scatter, units[u], reductions, options.reduce, at.shard_size);
    }
  }
  for (const ParameterSpec& spec : specs) {
    const Shape slice = tensor_parallel_shape(spec, at.tp_size);
    const int64_t columns = slice.rank() == 2 ? slice[1] : 1;
    const int64_t held = shard_rows(slice[0], at.shard_rank, at.shard_size).size() * columns;
    if (held == 0) continue;
    if (spec.tensor_parallel == TensorParallel::replicate && at.tp_size > 1) record.copies("tp", held, DType::f32, at.tp_size, at.tp_rank);
    for (const ShardRun& run : shard_runs(spec, at)) {
      const int sharers = ranks_that_share(spec, spec.parts[static_cast<size_t>(run.part)], at.tp_size);
      const int64_t count = (run.row_end - run.row_begin) * columns;
      if (sharers > 1) record.copies("kv_heads", count, DType::f32, sharers, at.tp_rank % sharers);
    }
    if (layout.replicas > 1) record.copies("dp_replicate", held, DType::f32, layout.replicas, at.replica_rank);
  }
  const int replica = at.shard_size * at.tp_size;
  if (replica > 1) record.copies("replica", 1, DType::f64, replica, at.shard_rank * at.tp_size + at.tp_rank);
}

}  // namespace ottava
