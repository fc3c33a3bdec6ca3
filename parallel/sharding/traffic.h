#pragma once

#include <span>

#include "parallel/comm/comm_stats.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

/// Where a rank stands, for the formulas of traffic.
struct TrafficLayout {
  ShardCoordinates at;
  int replicas = 1;
  int64_t micro_batches = 1;
};

/// Adds what this rank's parameters send in one training step, by formula, from the table alone. With S
/// shards, R replicas, M micro-batches and P_u the elements of unit u's slices, padding of packed ones
/// included (shard_packing.h):
///
///     gathers     dp_shard      sum_u g_u (S-1)/S P_u in the compute type, g_u = gathers[u] M, or 1 where
///                               never resharded; FP8 bytes and the scales that travel in their place where
///                               weights are gathered so
///     reductions  dp_shard      sum_u r (S-1)/S P_u in the reduce type, r = M, or 1 where reduced once per
///                               step; with float8_gradients instead all-to-alls of 1 + 1/32 bytes per
///                               element (float8_exchange.h)
///     copies      dp_replicate  2 (R-1)/R of all shards in f32, once; tp and kv_heads the same for what
///                               their ranks share
///     amaxes      replica       u32 per FP8 weight with a scale per tensor, once
///                 dp_shard      a vector per weight scaled by columns
///                 dp_replicate  with FP8 and replicas the norm's two halves
///     norm        replica       one f64
///
/// `gathers` per unit and micro-batch is the model's schedule (llama_gathers). Entries carry the axis and no
/// label.
struct UnitGatherCounts {
  int total = 0;                  ///< times that a unit becomes whole
  int forward = 0, backward = 0;  ///< of them with FP8 bytes of either use, where these differ
};
void add_parameter_traffic(CommStats& out, std::vector<ParameterSpec> specs, const FsdpOptions& options,
                           const TrafficLayout& layout, std::span<const UnitGatherCounts> gathers);

/// Ranks that share the rows of a part: tp / groups where it has fewer groups than there are ranks, else 1.
int ranks_that_share(const ParameterSpec& spec, const ParameterPart& part, int tp_size);

/// Bytes that rank `rank` of `ranks` sends in an all_reduce of `count` elements (comm_stats.h).
int64_t all_reduce_sent(int64_t count, int64_t element_bytes, int ranks, int rank);

}  // namespace ottava
