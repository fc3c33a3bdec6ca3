#include "parallel/sharding/repeated_weights.h"

#include <algorithm>
#include <vector>

#include "core/initialise.h"
#include "core/ops/elementwise.h"

namespace ottava {
namespace {

std::vector<float> first_values(const ParameterPart& part, uint64_t seed, int64_t first, int64_t count) {
  const bool is_one = part.init.kind == Initialisation::Kind::ones;
  std::vector<float> values(count, is_one ? 1.0f : 0.0f);
  if (is_one || part.init.std == 0) return values;
  const double cut = part.init.kind == Initialisation::Kind::truncated_normal ? part.init.cut : 0;
  fill_normal(values.data(), first, count,
              {.seed = seed, .name = part.hf_name, .std = part.init.std, .cut = cut});
  return values;
}

}  // namespace

void initialise_by_repetition(Stream& stream, Fsdp& parameters, uint64_t seed, int64_t values) {
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    const ParameterSpec& spec = parameters.specs()[p];
    const ParameterShard& shard = parameters.shard(static_cast<int>(p));
    if (shard.master.numel() == 0) continue;
    const Tensor flat = shard.master.reshape({shard.master.numel()});
    for (const ShardRun& run : shard_runs(spec, parameters.coordinates())) {
      const int64_t width = run.column_end - run.column_begin, begin = run.local_row * width,
                    count = (run.row_end - run.row_begin) * width;
      int64_t done = std::min(count, values);
      const std::vector<float> drawn =
          first_values(spec.parts[run.part], seed, run.row_begin * spec.columns + run.column_begin, done);
      copy(stream, view_of(const_cast<float*>(drawn.data()), {done}), flat.slice(begin, begin + done));
      stream.synchronize();  // `drawn` goes
      for (int64_t more = 0; done < count; done += more) {
        more = std::min(done, count - done);
        copy(stream, flat.slice(begin, begin + more), flat.slice(begin + done, begin + done + more));
      }
    }
  }
  parameters.clear_moments();
  parameters.refresh_compute_copies();
}

}  // namespace ottava
