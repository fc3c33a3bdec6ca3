#include <cmath>
#include <numbers>

#include "core/ops/attention/attention_kernels.h"
#include "core/ops/attention/tiles/tile_products.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"

// A task owns key tiles and walks down the queries that see them, so dK and dV are finished in one place. Its
// share of dQ goes to a slot. Where there are enough (sequence, key head) pairs to keep the threads busy, a
// task is a pair, its dQ is complete and the slot is the thread's own; where there are few, a pair's key
// tiles are dealt out to several tasks, each with a slot, and the slots are added in order. Either way
// nothing is summed twice or in an order that time decides.
namespace ottava::cpu {
namespace {

// Tasks per thread, so that unequal ones level out.
constexpr int64_t kTasksPerThread = 4;

// As if for all heads and positions, of which the call may cover only a part, so that dQ is summed in the
// same order.
int64_t tasks_per_pair(const AttentionTiling& t) {
  const int64_t pairs = t.batch * t.heads.kv_heads, tiles = pieces_of(t.key_sequence, t.keys);
  const int64_t wanted = pieces_of(kTasksPerThread * t.lanes, pairs);
  return t.lanes == 1 ? 1 : std::min(wanted, tiles);
}

/// One thread's memory.
struct BackwardLane {
  BackwardLane(const AttentionTiling& t, const TileProducts& p) {
    const int64_t d = t.heads.head_dim, rows = t.query_tiles() * t.group * p.packed_rows(t.queries);
    const auto packed = [&](Operand operand, int64_t count) {
      return parts.take(p.packed_bytes(operand, count));
    };
    q = packed(Operand::left, rows);
    dout = packed(Operand::left, rows);
    summed_q = p.packs_alike(Operand::left, Operand::summed) ? q : packed(Operand::summed, rows);
    summed_dout = p.packs_alike(Operand::left, Operand::summed) ? dout : packed(Operand::summed, rows);
    k = packed(Operand::transposed, t.keys);
    v = packed(Operand::transposed, t.keys);
    right_k = p.packs_alike(Operand::transposed, Operand::right) ? k : packed(Operand::right, t.keys);
    dk = parts.take(t.column_elements() * 4);
    dv = parts.take(t.column_elements() * 4);
    finished = parts.take(t.keys * d * 4);
    scores = parts.take(p.score_elements() * 4);
    dprobabilities = parts.take(p.score_elements() * 4);
    probabilities = p.in_place() ? scores : parts.take(t.tile_bytes(p.summed_elements()));
    dscores = p.in_place() ? dprobabilities : parts.take(t.tile_bytes(p.summed_elements()));
    scratch = parts.take(p.scratch_bytes());
  }
  Parts parts;
  int64_t q, dout, summed_q, summed_dout, k, v, right_k, dk, dv, finished;
  int64_t scores, dprobabilities, probabilities, dscores, scratch;
};

/// All of the memory: threads, slots of dQ, delta.
struct Layout {
  Layout(const AttentionTiling& t, const TileProducts& products)
      : lane(t, products), split(tasks_per_pair(t)) {
    slot_elements = t.group * t.sequence * t.heads.head_dim;
    lanes = parts.take(t.lanes * lane.parts.bytes());
    slots = parts.take((split > 1 ? split * t.pairs() : std::min(t.lanes, t.pairs())) * slot_elements * 4);
    delta = parts.take(t.batch * t.heads.heads * t.sequence * 4);
  }
  BackwardLane lane;
  int64_t split, slot_elements;
  Parts parts;
  int64_t lanes, slots, delta;
};

/// The whole pass: what each task needs to know.
class Backward {
 public:
  Backward(Stream& stream, const AttentionBackward& args)
      : a_(args),
        t_(stream.matmul_cache().products().attention, args.qkv.dtype, args.heads, args.batch, args.sequence,
           args.keys),
        rows_(t_, args.qkv, args.keys),
        products_(TileProducts::make(t_, Pass::backward, &stream.matmul_cache())),
        layout_(t_, *products_),
        workspace_(attention_workspace("attention_backward", args.workspace, layout_.parts.bytes())),
        delta_(reinterpret_cast<float*>(workspace_ + layout_.delta)),
        slots_(reinterpret_cast<float*>(workspace_ + layout_.slots)),
        kernels_(attention_kernels()),
        scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(args.heads.head_dim)))) {}

  void run() {
    const cpu::Rows heads{t_.first_kv * t_.group, (t_.first_kv + t_.kv_heads) * t_.group, a_.heads.head_dim};
    parallel_for(t_.batch * t_.sequence, 16, [&](int64_t begin, int64_t end) {
      kernels_.delta[t_.dtype](a_, delta_, {begin, end, a_.heads.head_dim}, heads);
    });
    // The first key tiles are seen by the most queries, so the longest tasks come first.
    const int64_t together = layout_.split == 1 ? t_.pairs_together() : 1;
    parallel_for_each(t_.pairs() * layout_.split / together, [&](int64_t task) {
      const int lane = t_.lanes == 1 ? 0 : parallel_lane();
      const TileProducts::Use use(*products_);
      for (int64_t i = task * together; i < (task + 1) * together; ++i)
        key_tiles(i % t_.pairs(), i / t_.pairs(), lane,
                  slots_ + (layout_.split > 1 ? i : lane) * layout_.slot_elements);
    });
    if (layout_.split == 1) return;
    parallel_for(t_.pairs() * t_.query_tiles(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t pair = i / t_.query_tiles();
        store_dq(pair, i % t_.query_tiles(),
                 {.from = slots_ + pair * layout_.slot_elements,
                  .parts = layout_.split,
                  .part_stride = t_.pairs() * layout_.slot_elements});
      }
    });
  }

 private:
  /// The first tile of queries that sees a tile of keys.
  int64_t first_query_tile(int64_t key_tile) const {
    return std::max<int64_t>(key_tile * t_.keys - t_.first_query, 0) / t_.queries;
  }

  /// Where a tile of queries is among packed operands.
  int64_t of_tile(Operand operand, int64_t index) const {
    return index * products_->packed_bytes(operand, t_.group * products_->packed_rows(t_.queries));
  }

  /// A tile of queries and of dO, for all of a task's key tiles.
  void pack_queries(int64_t pair, int64_t index, int lane) const {
    const BackwardLane& l = layout_.lane;
    char* own = workspace_ + layout_.lanes + lane * l.parts.bytes();
    const int64_t d = a_.heads.head_dim, heads = a_.heads.heads, row = a_.heads.row();
    const int64_t first = index * t_.queries, queries = std::min(t_.queries, t_.sequence - first),
                  token = pair / t_.kv_heads * t_.sequence + first;
    for (int64_t g = 0; g < t_.group; ++g) {
      const int64_t head = (t_.first_kv + pair % t_.kv_heads) * t_.group + g;
      const auto pack = [&](Operand operand, int64_t q, int64_t dout) {
        const int64_t at =
            of_tile(operand, index) + products_->packed_bytes(operand, g * products_->packed_rows(queries));
        products_->pack(operand, element(a_.qkv, token * row + head * d), row, queries, own + q + at);
        products_->pack(operand, element(a_.dout, (token * heads + head) * d), heads * d, queries,
                        own + dout + at);
      };
      pack(Operand::left, l.q, l.dout);
      if (l.summed_q != l.q) pack(Operand::summed, l.summed_q, l.summed_dout);
    }
  }

  /// Every split-th key tile of a pair, and with all of them its dQ; dq is a slot.
  void key_tiles(int64_t pair, int64_t first, int lane, float* dq) const {
    std::fill_n(dq, layout_.slot_elements, 0.0f);
    for (int64_t i = first_query_tile(first); i < t_.query_tiles(); ++i) pack_queries(pair, i, lane);
    for (int64_t i = first; i < t_.key_tiles(); i += layout_.split) key_tile(pair, i, lane, dq);
    for (int64_t i = 0; layout_.split == 1 && i < t_.query_tiles(); ++i) store_dq(pair, i, {.from = dq});
  }

  /// dK and dV of one key tile, and its share of dQ: dq is [query tile][group, queries, D].
  void key_tile(int64_t pair, int64_t index, int lane, float* dq) const {
    const BackwardLane& l = layout_.lane;
    char* own = workspace_ + layout_.lanes + lane * l.parts.bytes();
    void* scratch = own + l.scratch;
    float* dk = reinterpret_cast<float*>(own + l.dk);
    float* dv = reinterpret_cast<float*>(own + l.dv);
    const int64_t d = a_.heads.head_dim, heads = a_.heads.heads;
    const int64_t b = pair / t_.kv_heads, kv = pair % t_.kv_heads, head = (t_.first_kv + kv) * t_.group;
    const int64_t key = index * t_.keys, all_keys = std::min(t_.keys, t_.end_of_keys() - key);
    const int64_t of_keys = (b * t_.key_sequence + key) * rows_.stride, k = of_keys + rows_.key_column(kv, d),
                  v = of_keys + rows_.value_column(kv, d);
    const auto pack_keys = [&](Operand operand, int64_t from, int64_t to) {
      products_->pack(operand, element(rows_.tensor, from), rows_.stride, all_keys, own + to);
    };
    pack_keys(Operand::transposed, k, l.k);
    pack_keys(Operand::transposed, v, l.v);
    if (l.right_k != l.k) pack_keys(Operand::right, k, l.right_k);
    std::fill_n(dk, t_.column_elements(), 0.0f);
    std::fill_n(dv, t_.column_elements(), 0.0f);

    for (int64_t i = first_query_tile(index); i < t_.query_tiles(); ++i) {
      const int64_t first = i * t_.queries, queries = std::min(t_.queries, t_.sequence - first);
      const int64_t token = b * t_.sequence + first, position = t_.first_query + first;
      const int64_t keys = std::min(all_keys, position + queries - key);
      const int32_t* starts = a_.document_start.empty() ? nullptr : a_.document_start.as<int32_t>() + token;
      if (first_visible_key(starts, queries) >= key + keys) continue;
      const int64_t q = of_tile(Operand::left, i), summed_q = of_tile(Operand::summed, i);
      const int64_t statistics = (b * heads + head) * t_.sequence + first;
      const GradientTile step{.tile = {.scores = reinterpret_cast<float*>(own + l.scores),
                                       .rows = t_.group * queries,
                                       .queries = queries,
                                       .keys = keys,
                                       .stride = t_.stride_of(keys),
                                       .first_query = position,
                                       .first_key = key,
                                       .document_start = starts,
                                       .scale_log2 = static_cast<float>(std::numbers::log2e) * scale_,
                                       .is_bf16 = t_.dtype == DType::bf16},
                              .dprobabilities = reinterpret_cast<float*>(own + l.dprobabilities),
                              .lse = a_.lse.as<float>() + statistics,
                              .delta = delta_ + statistics,
                              .head_stride = t_.sequence,
                              .probabilities = own + l.probabilities,
                              .dscores = own + l.dscores};
      products_->for_each_part(step.tile, [&](const TileProducts::Part& of) {
        const int64_t at = q + products_->packed_bytes(Operand::left, of.packed_row);
        products_->differentiate(lane, part_of(step, of),
                                 {.q = own + l.q + at,
                                  .dout = own + l.dout + at,
                                  .k = own + l.k,
                                  .v = own + l.v,
                                  .right = own + l.right_k,
                                  .all_keys = all_keys},
                                 dq + (first * t_.group + of.row) * d, scratch);
      });
      products_->columns(lane, step.tile, step.probabilities, own + l.summed_dout + summed_q, dv, scratch);
      products_->columns(lane, step.tile, step.dscores, own + l.summed_q + summed_q, dk, scratch);
    }
    finish_keys(dk, scale_, k, all_keys, own);
    finish_keys(dv, 1, v, all_keys, own);
  }

  /// Writes the sums of a tile's keys, times the factor, to the gradients of keys or values.
  void finish_keys(const float* sums, float factor, int64_t at, int64_t keys, char* own) const {
    const Rows block{0, keys, a_.heads.head_dim};
    const float* from =
        products_->rows_of_columns(sums, keys, reinterpret_cast<float*>(own + layout_.lane.finished));
    if (!a_.keys.empty())
      return kernels_.add(from, factor, a_.keys.gradients.as<float>() + at, rows_.stride, block);
    kernels_.store[t_.dtype]({.from = from, .factor = factor}, element(a_.dqkv, at), a_.heads.row(), block);
  }

  GradientTile part_of(const GradientTile& whole, const TileProducts::Part& of) const {
    GradientTile part = whole;
    const int64_t scores = of.packed_row * of.tile.stride,
                  statistics = of.row / whole.tile.queries * whole.head_stride + of.row % whole.tile.queries;
    part.tile = of.tile;
    part.tile.scores += scores;
    part.dprobabilities += scores;
    part.lse += statistics;
    part.delta += statistics;
    part.probabilities = static_cast<char*>(part.probabilities) + t_.tile_bytes(scores);
    part.dscores = static_cast<char*>(part.dscores) + t_.tile_bytes(scores);
    return part;
  }

  void store_dq(int64_t pair, int64_t index, AttentionKernels::Sum dq) const {
    const int64_t d = a_.heads.head_dim, row = a_.heads.row();
    const int64_t first = index * t_.queries, queries = std::min(t_.queries, t_.sequence - first);
    const int64_t token = pair / t_.kv_heads * t_.sequence + first,
                  head = (t_.first_kv + pair % t_.kv_heads) * t_.group;
    dq.from += first * t_.group * d;
    dq.factor = scale_;
    for (int64_t g = 0; g < t_.group; ++g, dq.from += queries * d) {
      kernels_.store[t_.dtype](dq, element(a_.dqkv, token * row + (head + g) * d), row, {0, queries, d});
    }
  }

  const AttentionBackward& a_;
  AttentionTiling t_;
  KeyRows rows_;
  std::unique_ptr<const TileProducts> products_;
  Layout layout_;
  char* workspace_;
  float *delta_, *slots_;
  const AttentionKernels& kernels_;
  float scale_;
};

}  // namespace

int64_t backward_workspace_bytes(const AttentionTiling& t, const TileProducts& products) {
  return Layout(t, products).parts.bytes();
}

void attention_backward(Stream& stream, const AttentionBackward& args) { Backward(stream, args).run(); }

}  // namespace ottava::cpu
