#include "parallel/checkpoint/held_runs.h"

#include "core/error.h"

namespace ottava::checkpoint {
namespace {

const ShardMemory& memory_of(const HeldShard& shard, State state) {
  switch (state) {
    case State::weight:
      return shard.weight;
    case State::exp_avg:
      return shard.exp_avg;
    case State::exp_avg_sq:
      return shard.exp_avg_sq;
    case State::momentum:
      return shard.momentum;
  }
  fail("checkpoint", "state {} has no memory in memory_of()", static_cast<int>(state));
}

}  // namespace

int64_t owned_bytes(const TrainedParameters& parameters) {
  if (parameters.at.replica_rank != 0) return 0;
  int64_t sum = 0;
  for (size_t p = 0; p < parameters.shards.size(); ++p) {
    const HeldShard& shard = parameters.shards[p];
    int64_t element = size_of(shard.weight.dtype);
    if (parameters.with_optimizer) {
      element += parameters.specs[p].rule == UpdateRule::muon
                     ? size_of(shard.momentum.dtype)
                     : size_of(shard.exp_avg.dtype) + size_of(shard.exp_avg_sq.dtype);
    }
    for (const ShardRun& run : shard_runs(parameters.specs[p], parameters.at)) {
      if (run.is_owner) sum += run.rows() * run.columns() * element;
    }
  }
  return sum;
}

std::vector<HeldRun> held_runs(const Layout& layout, const TrainedParameters& parameters) {
  if (parameters.shards.size() != parameters.specs.size()) {
    fail<ConfigError>("checkpoint", "there are {} parameters and {} shards", parameters.specs.size(),
                      parameters.shards.size());
  }
  std::vector<std::vector<ShardRun>> runs_of_spec;
  for (const ParameterSpec& spec : parameters.specs) runs_of_spec.push_back(shard_runs(spec, parameters.at));
  std::vector<HeldRun> held;
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    const StoredTensor& tensor = layout.tensors[t];
    size_t spec = tensor.spec;
    for (const ShardRun& run : runs_of_spec[spec]) {
      if (run.part != tensor.part) continue;
      const ShardMemory& memory = memory_of(parameters.shards[spec], tensor.state);
      if (!memory.data) {
        fail<ConfigError>("checkpoint", "the shard of '{}' has no memory on this rank", tensor.entry.name);
      }
      int64_t offset = run.local_row * run.columns();
      held.push_back(
          {.tensor = t,
           .rectangle = {run.row_begin, run.row_end, run.column_begin, run.column_end},
           .memory = {memory.dtype, static_cast<char*>(memory.data) + offset * size_of(memory.dtype)},
           .is_owner = run.is_owner && parameters.at.replica_rank == 0});
    }
  }
  return held;
}

}  // namespace ottava::checkpoint
