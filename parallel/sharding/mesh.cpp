#include "parallel/sharding/mesh.h"

#include <algorithm>

#include "core/contains.h"
#include "core/error.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
constexpr std::array<std::string_view, 5> kKeys = {
    "parallelism.pipeline_parallel_degree", "parallelism.data_parallel_replicate_degree",
    "parallelism.data_parallel_shard_degree", "parallelism.context_parallel_degree",
    "parallelism.tensor_parallel_degree"};

std::string product_text(const std::array<int, 5>& sizes) {
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i)
    text += fmt::format("{}{} {}", i ? " x " : "", kNames[i], sizes[i]);
  return text;
}

}  // namespace

std::string_view name_of(MeshAxis axis) { return kNames[static_cast<size_t>(axis)]; }

Mesh::Mesh(const MeshDegrees& degrees, int world_size)
    : sizes_{degrees.pp, degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.tp},
      world_size_(world_size) {
  if (world_size < 1) fail<ConfigError>("mesh", "the world size is {}, expected at least 1", world_size);
  int64_t product = 1;
  int rest = -1;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] == -1) {
      if (rest >= 0) {
        fail<ConfigError>("mesh", "{} and {} are both -1: only one degree can take all remaining ranks",
                          kKeys[rest], kKeys[i]);
      }
      rest = static_cast<int>(i);
    } else if (sizes_[i] < 1) {
      fail<ConfigError>("mesh", "{} is {}, expected a positive number, or -1 for all remaining ranks",
                        kKeys[i], sizes_[i]);
    } else {
      product *= sizes_[i];
    }
  }
  if (rest >= 0) {
    auto& size = sizes_[rest];
    if (world_size % product != 0) {
      fail<ConfigError>("mesh",
                        "{} cannot be divided: {} with {} = -1 makes {} x {}, and {} / {} is not whole: "
                        "change a degree, or start a multiple of {} ranks",
                        counted(world_size, "rank"), product_text(sizes_), kNames[rest], product,
                        kNames[rest], world_size, product, product);
    }
    size = static_cast<int>(world_size / product);
  } else if (product != world_size) {
    fail<ConfigError>("mesh", "{} = {}, but the world size is {}: change a degree, set {} to -1, or start {}",
                      product_text(sizes_), product, counted(world_size, "rank"),
                      kKeys[static_cast<size_t>(MeshAxis::dp_shard)], counted(product, "rank"));
  }
}

int MeshDegrees::fewest_ranks() const {
  int product = 1;
  for (int degree : {pp, dp_replicate, dp_shard, cp, tp}) product *= std::max(degree, 1);
  return product;
}

int Mesh::coordinate(MeshAxis axis, int rank) const {
  if (rank < 0 || rank >= world_size_) {
    fail<ConfigError>("mesh", "rank {} does not exist among {}", rank, counted(world_size_, "rank"));
  }
  for (size_t i = sizes_.size(); i-- > static_cast<size_t>(axis) + 1;) rank /= sizes_[i];
  return rank % size(axis);
}

std::vector<int> Mesh::group(std::initializer_list<MeshAxis> axes, int rank) const {
  int first = rank;
  std::vector<int> steps{0};  // from the first of the group, axis by axis from the outermost
  int stride = world_size_;
  for (MeshAxis axis : kMeshAxes) {
    stride /= size(axis);
    if (!contains(axes, axis)) continue;
    first -= coordinate(axis, rank) * stride;
    std::vector<int> finer;
    for (int step : steps)
      for (int i = 0; i < size(axis); ++i) finer.push_back(step + i * stride);
    steps = std::move(finer);
  }
  for (int& step : steps) step += first;
  return steps;
}

std::vector<int> Mesh::loss_group(int rank) const {
  return group({MeshAxis::dp_replicate, MeshAxis::dp_shard, MeshAxis::cp}, rank);
}

std::vector<int> Mesh::stage_group(int rank) const {
  return group({MeshAxis::dp_shard, MeshAxis::cp, MeshAxis::tp}, rank);
}

std::vector<int> Mesh::replica_group(int rank) const {
  return group({MeshAxis::pp, MeshAxis::dp_shard, MeshAxis::cp, MeshAxis::tp}, rank);
}

ShardCoordinates Mesh::shard_coordinates(int rank) const {
  using enum MeshAxis;
  return {.tp_rank = coordinate(tp, rank),
          .tp_size = size(tp),
          .shard_rank = coordinate(dp_shard, rank) * size(cp) + coordinate(cp, rank),
          .shard_size = shards(),
          .replica_rank = coordinate(dp_replicate, rank)};
}

std::string Mesh::describe() const { return fmt::format("{} = {}", product_text(sizes_), world_size_); }

}  // namespace ottava
