#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "parallel/sharding/reshard.h"

namespace ottava {

/// Of a run or a plan, which lists the ranks of each group for every step that it records: several times the
/// GPUs of the largest cluster; a plan takes seconds, and a search for layouts, which makes many, minutes.
inline constexpr int kMostRanks = 1 << 20;

/// Section `parallelism`; mesh axes from outer to inner: pp, dp_replicate, dp_shard, cp, tp. What keys mean:
/// parallelism_config.cpp.
struct ParallelismConfig {
  using Reshard = ottava::Reshard;
  enum class Reduce { automatic, every_microbatch, once_per_step };

  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;  ///< -1: the rest of the world
  int64_t context_parallel_degree = 1;
  int64_t tensor_parallel_degree = 1;
  Reshard fsdp_reshard_after_forward = Reshard::automatic;
  Reduce fsdp_reduce_every_microbatch = Reduce::automatic;
  int64_t fsdp_prefetch = 1;
  bool disable_loss_parallel = false;
  bool enable_async_tensor_parallel = false;
  int64_t pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1F1B";
  int64_t pipeline_parallel_microbatch_size = 1;
  std::optional<int64_t> pipeline_parallel_layers_per_stage;
  int64_t pipeline_parallel_first_stage_less_layers = 1;
  int64_t pipeline_parallel_last_stage_less_layers = 1;
  std::vector<std::string> pipeline_parallel_split_points;
  bool operator==(const ParallelismConfig&) const = default;
};

void declare(config::Section& s, ParallelismConfig& c);
void validate(const ParallelismConfig& c, config::Problems& problems);

}  // namespace ottava
