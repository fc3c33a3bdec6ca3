#include "parallel/checkpoint/held_runs.h"

#include "core/error.h"

namespace ottava::checkpoint {

int64_t owned_bytes(const TrainedParameters& parameters) {
  if (parameters.at.replica_rank != 0) return 0;
  int64_t sum = 0;
  for (size_t p = 0; p < parameters.shards.size(); ++p) {
    const HeldShard& shard = parameters.shards[p];
    int64_t element = size_of(shard.weight.dtype);
    if (parameters.with_optimizer) {
      for (const MomentTraits& m : moments_of(parameters.specs[p].rule))
        element += size_of(shard.moments[m.moment].dtype);
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
      const HeldShard& shard = parameters.shards[spec];
      const ShardMemory& memory = tensor.moment ? shard.moments[*tensor.moment] : shard.weight;
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
