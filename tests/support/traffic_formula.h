#pragma once

#include <map>
#include <ostream>
#include <string>
#include <utility>

#include "tests/support/layout_run.h"

namespace ottava::test {

/// Calls and bytes sent, by axis and collective.
struct SentTotal {
  int64_t calls = 0, bytes = 0;
  bool operator==(const SentTotal&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const SentTotal& t) {
    return out << t.calls << " calls, " << t.bytes << " bytes";
  }
};
using SentTotals = std::map<std::pair<std::string, std::string>, SentTotal>;
SentTotals sent_totals(const CommStats& stats);

/// What a rank sends in a training step, counted by hand from the table of parameters and the policy, so that
/// a step that was recorded wrongly is found. With S shards, R replicas, t tensor-parallel ranks, M
/// micro-batches, P_u the elements of unit u's slices (padding of packed ones included), A = N C elements of
/// the compute type for the N tokens of a micro-batch, L layers:
///
///     gathers     dp_shard      sum_u g_u (S-1)/S P_u in the compute type, g_u = M times what the model's
///                               schedule says, or 1 where never resharded, or where FP8 codes of a weight
///                               that does not travel packed are kept; FP8 codes and the scales that
///                               travel in their place where weights are gathered so
///     reductions  dp_shard      sum_u r (S-1)/S P_u in the reduce type, r = M, or 1 where reduced once per
///                               step; with float8_gradients all-to-alls of 1 + 1/32 bytes per element
///     copies      dp_replicate  2 (R-1)/R of all shards in the reduce type, once; tp and kv_heads the
///                               same in f32 for what their ranks share
///     amaxes      replica       u32 per FP8 weight with a scale per tensor, once
///                 dp_shard      a vector per weight scaled by columns
///                 dp_replicate  with FP8 and replicas the norm's two halves
///     norm        replica       one f64
///     activations tp, (t-1)/t of what is moved:
///         gathers  (6 L + 2 L_recomputed + 2) A   forward wqkv, w13; backward w2, w13, wo, wqkv; head;
///                                                 embedding's backward
///         sums     (4 L +   L_recomputed + 2) A   forward wo, w2; backward w13, wqkv; embedding; head's
///                                                 backward
///         FP8      gathers of x again for a weight gradient that keeps codes with one scale: A bytes. Where
///                  activations are gathered in FP8 also those of forward (scales per row or 1x128 along) and
///                  of dy where both its products are FP8 with one scale; one u32 all-reduce for each scale
///                  per tensor. Recipe delayed: the amaxes of all operands, once, over the world
///         loss     3 all-reduces of N f32, in chunks; without loss parallel a gather of the logits, N V f32
///     muon        replica       of each matrix what its owner does not hold, once each way in the
///                               precision: a message per peer and bucket (parallel/sharding/muon_owners.h)
///     keys, values  cp, (c-1)/c of what is moved, in up to 4 groups of heads; a rank's N tokens are 1/c
///                   of its sequences, and K = 2 N c H_kv/t D:
///         gathers  (2 L + L_recomputed with their attention) K in the compute type
///         sums     L K f32
SentTotals traffic_by_formula(const TrainingShape& shape, const Layout& layout, int rank);

/// Every rank planned that for the step and sent it in the last one.
void require_traffic_of_formula(const TrainingShape& whole, const Layout& layout, const LayoutCurve& curve);

}  // namespace ottava::test
