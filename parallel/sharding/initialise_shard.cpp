#include "parallel/sharding/initialise_shard.h"

#include <algorithm>

#include "core/initialise.h"
#include "core/ops/elementwise.h"

namespace ottava {
namespace {

// Whole rows are one call: the common case, and vectors are rows of one element.
void fill_run(const ParameterSpec& spec, const ShardRun& run, uint64_t seed, float* shard) {
  const ParameterPart& part = spec.parts[run.part];
  const int64_t rows = run.row_end - run.row_begin, width = run.column_end - run.column_begin;
  float* out = shard + run.local_row * width;
  if (part.init.kind == Initialisation::Kind::ones || part.init.std == 0) {
    return std::fill(out, out + rows * width, part.init.kind == Initialisation::Kind::ones ? 1.0f : 0.0f);
  }
  NormalInitialisation how{
      .seed = seed,
      .name = part.hf_name,
      .std = part.init.std,
      .cut = part.init.kind == Initialisation::Kind::truncated_normal ? part.init.cut : 0};
  if (width == spec.columns) return fill_normal(out, run.row_begin * width, rows * width, how);
  for (int64_t r = 0; r < rows; ++r) {
    fill_normal(out + r * width, (run.row_begin + r) * spec.columns + run.column_begin, width, how);
  }
}

}  // namespace

void initialise_shard(Stream& stream, const ParameterSpec& spec, const ShardCoordinates& at, uint64_t seed,
                      const Tensor& shard) {
  if (stream.type() == DeviceType::meta || shard.numel() == 0) return;
  if (stream.type() == DeviceType::cpu) {
    for (const ShardRun& run : shard_runs(spec, at)) fill_run(spec, run, seed, shard.as<float>());
    return;
  }
  std::vector<float> host(shard.numel());
  for (const ShardRun& run : shard_runs(spec, at)) fill_run(spec, run, seed, host.data());
  copy(stream, view_of(host.data(), shard.shape), shard);
  stream.synchronize();
}

}  // namespace ottava
