#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/patient_ranks.h"

namespace ottava::checkpoint {

/// A model of awkward sizes: fused grouped-query attention, column slices that are not a multiple of 16
/// bytes, vectors, numbers of rows that no number of shards divides.
std::vector<ParameterSpec> tiny_model(bool tied = false);

/// The value that element `index` of a stored tensor ("x.weight", "x.weight.exp_avg") has in the tests.
float value_of(const std::string& name, int64_t index, int64_t version = 0);

/// Shard memory of one rank.
class TinyRank {
 public:
  explicit TinyRank(std::vector<ParameterSpec> specs, ShardCoordinates at = {}, DType moments = DType::f32);
  /// Sets every element to value_of (version) or, for loading, to a pattern that is no value.
  void fill(int64_t version);
  void clear();
  /// Number of elements that are not value_of (version), rounded to the memory's type; those of the stored
  /// tensors `of_others` have the version `others`.
  int64_t wrong(int64_t version, const std::set<std::string>& of_others = {}, int64_t others = 0) const;
  TrainedParameters parameters;

 private:
  void for_each(
      const std::function<void(const std::string& name, int64_t index, const ShardMemory& at)>& f) const;
  std::vector<ParameterSpec> specs_;  ///< those of `parameters`
  std::vector<std::vector<char>> memory_;
};

/// The degrees of a layout: world = replicas x shards x tp.
struct TinyLayout {
  int tp = 1, shards = 1, replicas = 1;
  int world() const { return tp * shards * replicas; }
  ShardCoordinates at(int rank) const {
    return {rank % tp, tp, rank / tp % shards, shards, rank / tp / shards};
  }
};

/// Runs body(rank's group, rank's shards) on all ranks of the layout, in threads.
void run_ranks(const TinyLayout& layout,
               const std::function<void(PatientRanks& group, ShardCoordinates at)>& body);

}  // namespace ottava::checkpoint
