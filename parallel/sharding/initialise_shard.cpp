#include "parallel/sharding/initialise_shard.h"

#include <algorithm>

#include "core/initialise.h"
#include "core/ops/elementwise.h"

namespace ottava {
namespace {

// Whole rows take one call. This is the common case, and vectors are rows of one element.
void fill_run(const ParameterSpec& spec, const ShardRun& run, uint64_t seed, float* shard) {
  const int64_t width = run.columns(), at_once = width == spec.columns ? run.rows() : 1;
  float* out = shard + run.local_row * width;
  for (int64_t r = 0; r < run.rows(); r += at_once) {
    fill_initial(out + r * width, (run.row_begin + r) * spec.columns + run.column_begin, at_once * width,
                 spec.parts[run.part], seed);
  }
}

}  // namespace

void fill_initial(float* out, int64_t first, int64_t count, const ParameterPart& part, uint64_t seed) {
  using Kind = Initialisation::Kind;
  if (part.init.kind == Kind::ones || part.init.std == 0) {
    std::fill_n(out, count, part.init.kind == Kind::ones ? 1.0f : 0.0f);
    return;
  }
  fill_normal(out, first, count,
              {.seed = seed,
               .name = part.hf_name,
               .std = part.init.std,
               .cut = part.init.kind == Kind::truncated_normal ? part.init.cut : 0});
}

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
