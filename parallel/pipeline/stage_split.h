#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ottava {

/// The units of one stage, [begin, end): 0 is the embedding, 1 to `layers` are the blocks, layers + 1 is norm
/// and head.
struct StageUnits {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
  bool contains(int unit) const { return unit >= begin && unit < end; }
  bool operator==(const StageUnits&) const = default;
};

/// How layers become stages. The fields mean what TorchTitan's keys of the same names mean.
struct StageSplit {
  int64_t layers = 0;
  int ranks = 1;
  bool is_looped = false;                   ///< the schedule takes several stages on a rank
  std::optional<int64_t> layers_per_stage;  ///< absent: one stage on each rank, two if looped
  int64_t first_less = 1, last_less = 1;    ///< layers that the embedding and the head count as
  /// The names with which the stages after the first begin, such as "layers.3" or "norm", in the model's
  /// order; empty: divide by layers.
  std::vector<std::string> split_points = {};
};

/// The stages in the model's order. Divided by layers, each gets (layers + first_less + last_less) / stages,
/// the first ones one more where that is not whole; then the first stage has first_less blocks fewer, the
/// last one last_less. Throws ConfigError if there are too few layers for so many stages, or if names are
/// unknown or out of order.
std::vector<StageUnits> split_stages(const StageSplit& split);

}  // namespace ottava
