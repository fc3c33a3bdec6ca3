#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/config/experiment.h"

namespace ottava {

/// The keys of a configuration that `ottava plan` varies: how many ranks share what, what is kept and what is
/// recomputed, and the precision of products and moments. All but the precisions and global_batch leave the
/// result of training unchanged.
struct Layout {
  int64_t dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, pp = 1;
  int64_t local_batch = 1, global_batch = 1;  ///< local: of a micro-batch
  ActivationCheckpointConfig recompute;
  ParallelismConfig::Reshard reshard = ParallelismConfig::Reshard::automatic;
  ParallelismConfig::Reduce reduce = ParallelismConfig::Reduce::automatic;
  DType moments = DType::f32;
  std::string float8;  ///< recipe; empty: no FP8
  bool float8_gather = false;
  bool by_level = false;  ///< training.mixed_precision_level says whether there is FP8

  int64_t ranks() const { return pp * dp_replicate * dp_shard * cp * tp; }
  /// Ranks that hold the pieces of a parameter.
  int64_t shards() const { return dp_shard * cp; }
  int64_t micro_batches() const { return global_batch / (dp_replicate * dp_shard * local_batch); }
  bool operator==(const Layout&) const = default;
};

/// The layout that an experiment has.
Layout layout_of(const Experiment& experiment);
/// `config` with the keys of the layout; all its other keys stay.
Config with_layout(Config config, const Layout& layout);

/// Keys and values of the layout, as a configuration spells them.
using LayoutKeys = std::vector<std::pair<std::string, std::string>>;
LayoutKeys keys_of(const Layout& layout);
/// The keys of `layout` whose values differ from those of `from`.
LayoutKeys changed_keys(const Layout& from, const Layout& layout);
/// "--parallelism.tensor_parallel_degree 8 --model.converters '[quantize.linear.float8]'", to append to a
/// command in a shell.
std::string options_text(const LayoutKeys& keys);
/// "dp_shard 8 x tp 2, 4 x 1 sequences, recompute selective op, bf16"; with what mode auto came to, if it is
/// said: "recompute auto (op, all but attention of 1 in 4 blocks)".
std::string describe(const Layout& layout, std::string_view automatic_recompute = {});

}  // namespace ottava
