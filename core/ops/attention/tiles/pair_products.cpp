#include "core/ops/attention/tiles/pair_products.h"

namespace ottava::cpu {
namespace {

void fetch_row(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

}  // namespace

PairProducts::PairProducts(const AttentionTiling& tiling)
    : TileProducts(tiling), products_(*pair_product_kernels()), attention_(*pair_attention_kernels()) {
  part_rows_ = kPairPanel;
  pads_parts_ = true;
  keeps_scores_ = false;
  scratch_bytes_ = pair_part_bytes(t_.largest_stride(), t_.heads.head_dim);
}

int64_t PairProducts::packed_bytes(Operand operand, int64_t count) const {
  const int64_t d = t_.heads.head_dim;
  const bool d_is_terms = operand == Operand::left || operand == Operand::transposed;
  return t_.tile_bytes(whole_pair_panels(count) * (d_is_terms ? whole_pair_panels(d) : d));
}

void PairProducts::pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const {
  const auto pack = operand == Operand::left         ? products_.rows
                    : operand == Operand::transposed ? products_.transposed
                    : operand == Operand::right      ? products_.rounded
                                                     : products_.summed;
  // Where rows are pages apart, no processor fetches the next ones by itself.
  const int64_t bytes = t_.tile_bytes(t_.heads.head_dim), between = t_.tile_bytes(stride);
  const char* row = static_cast<const char*>(from);
  for (int64_t i = 0; i < count; i += kPairPanel, row += kPairPanel * between) {
    for (int64_t r = kPairPanel; r < 2 * kPairPanel; ++r) fetch_row(row + r * between, bytes);
    pack(row, stride, to + packed_bytes(operand, i), {0, std::min(kPairPanel, count - i), t_.heads.head_dim});
  }
}

PairPart PairProducts::part_of(const PartOperands& of, void* scratch) const {
  const auto packed = [](const char* at) { return reinterpret_cast<const bf16*>(at); };
  return {.q = packed(of.q),
          .dout = packed(of.dout),
          .k = packed(of.k),
          .v = packed(of.v),
          .right = packed(of.right),
          .head_dim = t_.heads.head_dim,
          .memory = static_cast<char*>(scratch)};
}

void PairProducts::attend(int, const SoftmaxTile& tile, const PartOperands& of, void* scratch) const {
  attention_.attend(tile, part_of(of, scratch));
}

void PairProducts::differentiate(int, const GradientTile& tile, const PartOperands& of, float* dq,
                                 void* scratch) const {
  attention_.differentiate(tile, part_of(of, scratch), dq);
}

void PairProducts::columns(int, const ScoreTile& t, const void* p, const char* b, float* c, void*) const {
  const int64_t d = t_.heads.head_dim, keys = t_.stride_of(t.keys),
                parts = packed_rows(t.queries) / kPairPanel, heads = t.rows / t.queries;
  const auto add = [&](int64_t key, int64_t count, int64_t part, int64_t of_parts) {
    products_.multiply({.a = reinterpret_cast<const bf16*>(b) + part * kPairPanel * d,
                        .a_row = kPairPanel,
                        .a_depth = kPairPanel * d,
                        .a_panel = kPairPanel * kPairPanel,
                        .b = static_cast<const bf16*>(p) + kPairPanel * (part * t.stride + key),
                        .b_depth = kPairPanel * t.stride,
                        .b_block = kPairTileElements,
                        .b_panel = 2 * kPairTileElements,
                        .c = c + key,
                        .c_row = t_.column_stride(),
                        .m = d,
                        .n = count,
                        .k = of_parts * kPairPanel,
                        .accumulate = true});
  };
  if (t.first_key + t.keys - 1 <= t.first_query) return add(0, keys, 0, heads * parts);
  for (int64_t key = 0; key < keys; key += kPairPanel) {
    const int64_t hidden = std::max<int64_t>(t.first_key + key - t.first_query, 0) / kPairPanel;
    for (int64_t head = 0; head < heads && hidden < parts; ++head)
      add(key, kPairPanel, head * parts + hidden, parts - hidden);
  }
}

}  // namespace ottava::cpu
