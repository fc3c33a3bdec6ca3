#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "core/ops/attention/attention_kernels.h"
#include "core/ops/attention/tiles/tile_products.h"
#include "core/threads/parallel_for.h"

namespace ottava::cpu {
namespace {

/// One thread's memory.
struct ForwardLane {
  ForwardLane(const AttentionTiling& t, const TileProducts& products) {
    const int64_t d = t.heads.head_dim, rows = t.group * products.packed_rows(t.queries);
    q = parts.take(products.packed_bytes(Operand::left, rows));
    k = parts.take(t.key_tiles() * products.packed_bytes(Operand::transposed, t.keys));
    v = parts.take(t.key_tiles() * products.packed_bytes(Operand::right, t.keys));
    scores = parts.take(products.score_elements() * 4);
    probabilities = products.in_place() ? scores : parts.take(t.tile_bytes(products.score_elements()));
    sums = parts.take(rows * d * 4);
    finished = parts.take(products.packed_rows(t.queries) * d * 4);
    row_max = parts.take(rows * 4);
    row_sum = parts.take(rows * 4);
    scratch = parts.take(products.scratch_bytes());
  }
  /// Nothing of a tile's rows, of which there are so many in packed operands, has been seen yet.
  SoftmaxTile first_step(char* own, const ScoreTile& tile, int64_t packed_rows, int64_t head_dim) const {
    SoftmaxTile step{.tile = tile,
                     .probabilities = own + probabilities,
                     .row_max = reinterpret_cast<float*>(own + row_max),
                     .row_sum = reinterpret_cast<float*>(own + row_sum),
                     .sums = reinterpret_cast<float*>(own + sums),
                     .head_dim = head_dim};
    step.tile.scores = reinterpret_cast<float*>(own + scores);
    std::fill_n(step.row_max, packed_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(step.row_sum, packed_rows, 0.0f);
    std::fill_n(step.sums, packed_rows * head_dim, 0.0f);
    return step;
  }
  Parts parts;
  int64_t q, k, v, scores, probabilities, sums, finished, row_max, row_sum, scratch;
};

/// The whole pass: what each task needs to know.
class Forward {
 public:
  Forward(Stream& stream, const AttentionForward& args)
      : a_(args),
        t_(stream.matmul_cache().products().attention, args.qkv.dtype, args.heads, args.batch, args.sequence,
           args.keys),
        rows_(t_, args.qkv, args.keys),
        products_(TileProducts::make(t_, Pass::forward, &stream.matmul_cache())),
        lane_(t_, *products_),
        workspace_(attention_workspace("attention_forward", args.workspace, t_.lanes * lane_.parts.bytes())),
        scale_log2_(
            static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(args.heads.head_dim)))),
        packed_(t_.lanes) {}

  /// A pair's keys and values are packed once by each thread and stay in the cache for its tiles of queries,
  /// the longest first, so that what is left for the end is short. Where there are many pairs, a task is all
  /// of one's.
  void run() {
    constexpr int64_t kPairsPerThread = 8;
    const int64_t tasks_of_pair = t_.pairs() >= kPairsPerThread * t_.lanes ? 1 : t_.query_tiles();
    const int64_t together = tasks_of_pair == 1 ? t_.pairs_together() : 1;
    parallel_for_each(t_.pairs() / together * tasks_of_pair, [&](int64_t task) {
      const int lane = t_.lanes == 1 ? 0 : parallel_lane();
      const TileProducts::Use use(*products_);
      for (int64_t pair = task / tasks_of_pair * together, end = pair + together; pair < end; ++pair) {
        for (int64_t i = task % tasks_of_pair; i < t_.query_tiles(); i += tasks_of_pair)
          query_tile(pair, t_.query_tiles() - 1 - i, lane);
      }
    });
  }

 private:
  /// The tiles of a pair's keys and values that a thread has packed.
  struct PackedKeys {
    int64_t pair = -1;
    std::vector<bool> tiles;
  };
  struct PackedTile {
    const char *k, *v;
    int64_t keys;
  };

  PackedTile packed(int64_t pair, int64_t tile, int lane, char* own) {
    PackedKeys& done = packed_[static_cast<size_t>(lane)];
    if (done.pair != pair) done = {pair, std::vector<bool>(static_cast<size_t>(t_.key_tiles()))};
    const int64_t d = a_.heads.head_dim, kv = pair % t_.kv_heads, key = tile * t_.keys;
    const int64_t keys = std::min(t_.keys, t_.end_of_keys() - key),
                  row = (pair / t_.kv_heads * t_.key_sequence + key) * rows_.stride;
    char* k = own + lane_.k + tile * products_->packed_bytes(Operand::transposed, t_.keys);
    char* v = own + lane_.v + tile * products_->packed_bytes(Operand::right, t_.keys);
    if (!done.tiles[static_cast<size_t>(tile)]) {
      const auto pack = [&](Operand operand, int64_t column, char* to) {
        products_->pack(operand, element(rows_.tensor, row + column), rows_.stride, keys, to);
      };
      pack(Operand::transposed, rows_.key_column(kv, d), k);
      pack(Operand::right, rows_.value_column(kv, d), v);
      done.tiles[static_cast<size_t>(tile)] = true;
    }
    return {k, v, keys};
  }

  void query_tile(int64_t pair, int64_t index, int lane) {
    char* own = workspace_ + lane * lane_.parts.bytes();
    const int64_t d = a_.heads.head_dim, heads = a_.heads.heads, row = a_.heads.row();
    const int64_t b = pair / t_.kv_heads, head = (t_.first_kv + pair % t_.kv_heads) * t_.group;
    const int64_t first = index * t_.queries, queries = std::min(t_.queries, t_.sequence - first);
    const int64_t token = b * t_.sequence + first, position = t_.first_query + first,
                  end = position + queries, packed_rows = products_->packed_rows(queries);
    const int32_t* starts = a_.document_start.empty() ? nullptr : a_.document_start.as<int32_t>() + token;

    SoftmaxTile step = lane_.first_step(own,
                                        {.rows = t_.group * queries,
                                         .queries = queries,
                                         .first_query = position,
                                         .document_start = starts,
                                         .scale_log2 = scale_log2_,
                                         .is_bf16 = t_.dtype == DType::bf16},
                                        t_.group * packed_rows, d);
    for (int64_t g = 0; g < t_.group; ++g) {
      products_->pack(Operand::left, element(a_.qkv, token * row + (head + g) * d), row, queries,
                      own + lane_.q + products_->packed_bytes(Operand::left, g * packed_rows));
    }
    for (int64_t i = first_visible_key(starts, queries) / t_.keys; i * t_.keys < end; ++i) {
      const PackedTile of_keys = packed(pair, i, lane, own);
      step.tile.first_key = i * t_.keys;
      step.tile.keys = std::min(t_.keys, end - step.tile.first_key);
      step.tile.stride = t_.stride_of(step.tile.keys);
      products_->for_each_part(step.tile, [&](const TileProducts::Part& part) {
        SoftmaxTile now = step;
        now.tile = part.tile;
        now.row_max += part.packed_row;
        now.row_sum += part.packed_row;
        now.sums += part.packed_row * d;
        products_->attend(lane, now,
                          {.q = own + lane_.q + products_->packed_bytes(Operand::left, part.packed_row),
                           .k = of_keys.k,
                           .right = of_keys.v,
                           .all_keys = of_keys.keys},
                          own + lane_.scratch);
      });
    }
    for (int64_t g = 0; g < t_.group; ++g) {
      SoftmaxTile done = step;
      done.row_max += g * packed_rows;
      done.row_sum += g * packed_rows;
      done.sums = products_->rows_of_sums(done.sums + g * packed_rows * d, queries,
                                          reinterpret_cast<float*>(own + lane_.finished));
      attention_kernels().finish[t_.dtype](
          done, element(a_.out, token * heads * d + (head + g) * d), heads * d,
          a_.lse.as<float>() + (b * heads + head + g) * t_.sequence + first, {0, queries, d});
    }
  }

  const AttentionForward& a_;
  AttentionTiling t_;
  KeyRows rows_;
  std::unique_ptr<const TileProducts> products_;
  ForwardLane lane_;
  char* workspace_;
  float scale_log2_;
  std::vector<PackedKeys> packed_;  ///< of each thread
};

}  // namespace

int64_t forward_workspace_bytes(const AttentionTiling& t, const TileProducts& products) {
  return t.lanes * ForwardLane(t, products).parts.bytes();
}

void attention_forward(Stream& stream, const AttentionForward& args) { Forward(stream, args).run(); }

}  // namespace ottava::cpu
