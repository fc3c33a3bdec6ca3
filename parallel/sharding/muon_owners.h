#pragma once

#include <vector>

#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// One matrix that Muon works on as a whole: a part of a parameter (wq of a fused wqkv).
struct MuonMatrix {
  int parameter = 0, part = 0;
  int64_t rows = 0, columns = 0;  ///< global
  int owner = 0;                  ///< rank among those that hold the parameters together
  /// FLOPs of one Newton-Schulz step (core/optim/muon.h): 3 m n k + k^3, k = min(m, n).
  double flops() const;
  bool operator==(const MuonMatrix&) const = default;
};
/// Matrices that travel together.
using MuonBucket = std::vector<MuonMatrix>;

/// Lists once every part of every parameter of `specs` whose rule is Muon and that `at`'s pipeline stages
/// hold, and assigns them to the at.shard_size x at.tp_size ranks. A bucket is a run of units with at least
/// as many matrices as there are ranks (the last may have fewer). Within a bucket the matrices with most
/// FLOPs are assigned first, each to the rank with the fewest FLOPs so far over all buckets. So no rank works
/// much more than another, and rank 0 has the largest matrix of the first bucket. Throws ConfigError for a
/// parameter that is not a matrix.
std::vector<MuonBucket> muon_buckets(const std::vector<ParameterSpec>& specs, const ShardCoordinates& at);

}  // namespace ottava
