#include "apps/predict/full_ranks.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "apps/predict/sample_step.h"
#include "core/contains.h"
#include "parallel/sharding/fsdp.h"
#include "parallel/sharding/muon_owners.h"

namespace ottava {
namespace {

constexpr size_t kMostOwners = 4;  // that are fuller than the first, by what they have of Muon's update
constexpr size_t kMostParts = 4;   // of sequences, besides the first rank's

// What a rank has of Muon's update besides what all holders have alike.
struct MuonPart {
  std::set<std::pair<int64_t, int64_t>> shapes;  ///< of its matrices
  int64_t most_bytes = 0;                        ///< at a time (MuonUpdate::finish())
};

// Of one bucket: what it receives of its matrices and sends back, and what works on them one by one.
struct BucketBytes {
  int64_t received = 0, sent = 0, own = 0, scratch = 0;
};

int64_t scratch_bytes(const MuonMatrix& matrix, int64_t element) {
  const Shape x{matrix.rows, matrix.columns};
  const int64_t k = std::min(matrix.rows, matrix.columns);
  return (element + size_of(DType::f32)) * (x.numel() + k * k) +
         size_of(DType::f64) * newton_schulz_sums(x).numel();
}

std::vector<MuonPart> muon_parts(const TrainingShape& shape, ShardCoordinates at) {
  std::vector<ParameterSpec> specs = parameter_table(shape).specs;
  align_shards(specs, shape.parameters);
  const std::vector<MuonBucket> buckets = muon_buckets(specs, at);
  const int64_t element = size_of(shape.muon.precision);
  const size_t ranks = static_cast<size_t>(at.shard_size) * at.tp_size;
  std::vector<MuonPart> parts(buckets.empty() ? 0 : ranks);
  // By bucket and rank, with an empty bucket at either end.
  std::vector<std::vector<BucketBytes>> bytes(buckets.size() + 2, std::vector<BucketBytes>(parts.size()));
  for (size_t i = 0; i < buckets.size(); ++i) {
    for (const MuonMatrix& matrix : buckets[i]) {
      const ParameterSpec& spec = specs[matrix.parameter];
      at.shard_rank = matrix.owner / at.tp_size;
      at.tp_rank = matrix.owner % at.tp_size;
      int64_t own = 0;
      for (const ShardRun& run : shard_runs(spec, at))
        if (run.part == matrix.part) own += run.rows() * run.columns() * element;
      const int64_t whole = matrix.rows * matrix.columns * element;
      BucketBytes& of = bytes[i + 1][matrix.owner];
      of.own += own;
      of.received += whole - own;
      of.sent += whole * ranks_that_share(spec, spec.parts[matrix.part], at.tp_size);
      of.scratch = std::max(of.scratch, scratch_bytes(matrix, element));
      parts[matrix.owner].shapes.emplace(matrix.rows, matrix.columns);
    }
  }
  for (size_t i = 1; i <= buckets.size(); ++i) {
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const BucketBytes &before = bytes[i - 1][rank], &now = bytes[i][rank], &next = bytes[i + 1][rank];
      const int64_t alive =
          now.received + next.received + now.sent - now.own + before.sent - before.own + now.scratch;
      parts[rank].most_bytes = std::max(parts[rank].most_bytes, alive);
    }
  }
  return parts;
}

}  // namespace

std::vector<int> ranks_perhaps_fuller(const TrainingShape& shape, Device target, const Mesh& mesh, int role) {
  const int first = first_rank_of_role(mesh, role);
  std::vector<int> out;
  if (!target.is_gpu()) {
    for (const int rank : mesh.group({MeshAxis::cp}, first))
      if (rank != first && out.size() < kMostParts) out.push_back(rank);
  }
  ShardCoordinates at = mesh.shard_coordinates(first);
  at.units = shape.pipeline.units_of(role);
  const std::vector<MuonPart> parts = muon_parts(shape, at);
  if (parts.empty()) return out;
  std::vector<size_t> fullest_first(parts.size());
  std::iota(fullest_first.begin(), fullest_first.end(), size_t{0});
  std::ranges::stable_sort(fullest_first, std::greater<>(), [&](size_t i) { return parts[i].most_bytes; });
  const std::vector<int> holders = mesh.stage_group(first);
  std::set<int64_t> sizes;
  std::set<std::set<std::pair<int64_t, int64_t>>> shapes{parts[0].shapes};
  for (const size_t i : fullest_first) {
    const bool is_fuller = parts[i].most_bytes > parts[0].most_bytes && sizes.size() < kMostOwners &&
                           sizes.insert(parts[i].most_bytes).second;
    const bool has_other_products = !target.is_gpu() && shapes.insert(parts[i].shapes).second;
    if ((is_fuller || has_other_products) && !contains(out, holders[i])) out.push_back(holders[i]);
  }
  return out;
}

}  // namespace ottava
