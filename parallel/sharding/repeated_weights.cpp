#include "parallel/sharding/repeated_weights.h"

#include <algorithm>
#include <vector>

#include "core/ops/elementwise.h"
#include "parallel/sharding/initialise_shard.h"

namespace ottava {
void initialise_by_repetition(Stream& stream, Fsdp& parameters, uint64_t seed, int64_t values) {
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    const ParameterSpec& spec = parameters.specs()[p];
    const ParameterShard& shard = parameters.shard(static_cast<int>(p));
    if (shard.master.numel() == 0) continue;
    const Tensor flat = shard.master.reshape({shard.master.numel()});
    for (const ShardRun& run : shard_runs(spec, parameters.coordinates())) {
      const int64_t width = run.columns(), begin = run.local_row * width, count = run.rows() * width;
      int64_t done = std::min(count, values);
      std::vector<float> drawn(done);
      fill_initial(drawn.data(), run.row_begin * spec.columns + run.column_begin, done, spec.parts[run.part],
                   seed);
      copy(stream, view_of(drawn.data(), {done}), flat.slice(begin, begin + done));
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
