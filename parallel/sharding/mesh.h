#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// Axes of the mesh from outer (ranks far apart) to inner (neighbouring ranks).
enum class MeshAxis { pp, dp_replicate, dp_shard, cp, tp };
inline constexpr std::array<MeshAxis, 5> kMeshAxes = {MeshAxis::pp, MeshAxis::dp_replicate,
                                                      MeshAxis::dp_shard, MeshAxis::cp, MeshAxis::tp};
/// "pp", "dp_replicate", "dp_shard", "cp", "tp".
std::string_view name_of(MeshAxis axis);

/// `parallelism.*_degree` of a configuration: each is >= 1, except that at most one is -1, which takes the
/// ranks that are left.
struct MeshDegrees {
  int pp = 1, dp_replicate = 1, dp_shard = -1, cp = 1, tp = 1;
  /// The fewest ranks with which these degrees can run: their product, with -1 counted as 1.
  int fewest_ranks() const;
};

/// Which rank stands where: rank = (((pp * dp_replicate + ...) * dp_shard + ...) * cp + ...) * tp + tp
/// coordinate.
class Mesh {
 public:
  /// Throws ConfigError, with the product that failed, if the degrees do not multiply to world_size.
  Mesh(const MeshDegrees& degrees, int world_size);

  int world_size() const { return world_size_; }
  int size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  /// dp_shard x cp: the ranks that hold the pieces of a parameter.
  int shards() const { return size(MeshAxis::dp_shard) * size(MeshAxis::cp); }
  int coordinate(MeshAxis axis, int rank) const;

  /// Ranks that differ from `rank` only along the given axes, ascending; `rank` is among them.
  std::vector<int> group(std::initializer_list<MeshAxis> axes, int rank) const;
  /// dp_replicate x dp_shard x cp: the ranks that see different tokens; the loss is averaged over them.
  std::vector<int> loss_group(int rank) const;
  /// dp_shard x cp x tp: the ranks that hold one replica of a pipeline stage's parameters together.
  std::vector<int> stage_group(int rank) const;
  /// pp x dp_shard x cp x tp: the ranks that hold one replica of all parameters together.
  std::vector<int> replica_group(int rank) const;

  ShardCoordinates shard_coordinates(int rank) const;
  /// "pp 1 x dp_replicate 2 x dp_shard 2 x cp 1 x tp 2 = 8".
  std::string describe() const;

 private:
  std::array<int, 5> sizes_ = {};
  int world_size_ = 1;
};

}  // namespace ottava
