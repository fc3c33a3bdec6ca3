#include <cmath>
#include <limits>
#include <numbers>

#include "core/ops/attention/attention_kernels.h"
#include "core/ops/attention/attention_tiles.h"
#include "core/parallel_for.h"

namespace ottava::cpu {
namespace {

/// One thread's memory.
struct ForwardLane {
  ForwardLane(const AttentionTiling& t, int64_t scratch_bytes) {
    const int64_t d = t.heads.head_dim, rows = t.tile_rows();
    q = parts.take(t.tile_bytes(rows * d));
    k = parts.take(TileProducts::packed_bytes(t, Operand::transposed, t.keys));
    v = parts.take(TileProducts::packed_bytes(t, Operand::right, t.keys));
    scores = parts.take(t.score_elements() * 4);
    probabilities = t.tile == DType::f32 ? scores : parts.take(t.tile_bytes(t.score_elements()));
    sums = parts.take(rows * d * 4);
    row_max = parts.take(rows * 4);
    row_sum = parts.take(rows * 4);
    scratch = parts.take(scratch_bytes);
  }
  /// Nothing of a tile's rows has been seen yet.
  SoftmaxTile first_step(char* own, const ScoreTile& tile, int64_t head_dim) const {
    SoftmaxTile step{.tile = tile,
                     .probabilities = own + probabilities,
                     .row_max = reinterpret_cast<float*>(own + row_max),
                     .row_sum = reinterpret_cast<float*>(own + row_sum),
                     .sums = reinterpret_cast<float*>(own + sums),
                     .head_dim = head_dim};
    step.tile.scores = reinterpret_cast<float*>(own + scores);
    std::fill_n(step.row_max, tile.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(step.row_sum, tile.rows, 0.0f);
    std::fill_n(step.sums, tile.rows * head_dim, 0.0f);
    return step;
  }
  Parts parts;
  int64_t q, k, v, scores, probabilities, sums, row_max, row_sum, scratch;
};

}  // namespace

int64_t forward_workspace_bytes(const AttentionTiling& t, int64_t scratch_bytes) {
  return t.lanes * ForwardLane(t, scratch_bytes).parts.bytes();
}

void attention_forward(Stream& stream, const AttentionForward& a) {
  const AttentionTiling t(stream.matmul_cache().products().attention, a.qkv.dtype, a.heads, a.batch,
                          a.sequence, a.keys);
  const KeyRows rows(t, a.qkv, a.keys);
  const TileProducts products(stream.matmul_cache(), t, Pass::forward);
  const ForwardLane lane(t, products.scratch_bytes());
  char* workspace = attention_workspace("attention_forward", a.workspace, t.lanes * lane.parts.bytes());
  const auto& kernels = attention_kernels();
  const auto softmax = kernels.softmax[t.tile];
  const auto finish = kernels.finish[t.dtype];
  const int64_t d = a.heads.head_dim, stride = a.heads.row();
  const float scale_log2 = static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(d)));

  // A pair's keys and values stay in the cache for its tiles of queries; the longest first, so that what is
  // left for the end is short.
  parallel_for_each(t.query_tiles() * t.pairs(), [&](int64_t task) {
    const int lane_index = t.lanes == 1 ? 0 : parallel_lane();
    char* own = workspace + lane_index * lane.parts.bytes();
    const int64_t pair = task / t.query_tiles(), b = pair / t.kv_heads, kv = pair % t.kv_heads;
    const int64_t first = (t.query_tiles() - 1 - task % t.query_tiles()) * t.queries;
    const int64_t queries = std::min(t.queries, t.sequence - first);
    const int64_t token = b * t.sequence + first, head = (t.first_kv + kv) * t.group;
    const int64_t position = t.first_query + first, end = position + queries, of_keys = b * t.key_sequence;
    const int32_t* starts = a.document_start.empty() ? nullptr : a.document_start.as<int32_t>() + token;

    SoftmaxTile step = lane.first_step(own,
                                       {.rows = t.group * queries,
                                        .queries = queries,
                                        .first_query = position,
                                        .document_start = starts,
                                        .scale_log2 = scale_log2},
                                       d);
    for (int64_t g = 0; g < t.group; ++g) {
      products.pack(Operand::left, element(a.qkv, token * stride + (head + g) * d), stride, queries,
                    own + lane.q + t.tile_bytes(g * queries * d));
    }
    const int64_t skipped = first_visible_key(starts, queries) / t.keys * t.keys;
    for (int64_t key = skipped; key < end; key += t.keys) {
      const int64_t keys = std::min(t.keys, end - key), row = (of_keys + key) * rows.stride;
      products.pack(Operand::transposed, element(rows.tensor, row + rows.key_column(kv, d)), rows.stride,
                    keys, own + lane.k);
      products.pack(Operand::right, element(rows.tensor, row + rows.value_column(kv, d)), rows.stride, keys,
                    own + lane.v);
      step.tile.keys = keys;
      step.tile.stride = t.stride_of(keys);
      step.tile.first_key = key;
      products.for_each_part(step.tile, [&](const ScoreTile& part, int64_t row) {
        SoftmaxTile now = step;
        now.tile = part;
        now.row_max += row;
        now.row_sum += row;
        now.sums += row * d;
        products.scores(lane_index, part, own + lane.q + t.tile_bytes(row * d), own + lane.k, part.scores,
                        own + lane.scratch);
        softmax(now);
        products.rows(lane_index, part, now.probabilities, own + lane.v, keys, now.sums, own + lane.scratch);
      });
    }
    for (int64_t g = 0; g < t.group; ++g) {
      finish(step, element(a.out, token * a.heads.heads * d + (head + g) * d), a.heads.heads * d,
             a.lse.as<float>() + (b * a.heads.heads + head + g) * t.sequence + first,
             {g * queries, (g + 1) * queries, d});
    }
  });
}

}  // namespace ottava::cpu
