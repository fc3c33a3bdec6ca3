#include "core/ops/attention/tiles/amx_products.h"

namespace ottava::cpu {

AmxProducts::AmxProducts(const AttentionTiling& tiling)
    : TileProducts(tiling), products_(*amx_product_kernels()), attention_(*amx_attention_kernels()) {
  part_rows_ = kAmxPanel;
  pads_parts_ = true;
  keeps_scores_ = false;
  scratch_bytes_ = amx_part_bytes(t_.largest_stride(), t_.heads.head_dim);
}

int64_t AmxProducts::packed_bytes(Operand operand, int64_t count) const {
  const int64_t d = t_.heads.head_dim;
  const bool d_is_terms = operand == Operand::left || operand == Operand::transposed;
  return t_.tile_bytes(whole_amx_panels(count) * (d_is_terms ? whole_amx_panels(d) : d));
}

void AmxProducts::pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const {
  const auto pack = operand == Operand::left         ? products_.rows
                    : operand == Operand::transposed ? products_.transposed
                    : operand == Operand::right      ? products_.pairs
                                                     : products_.summed;
  pack(from, stride, to, {0, count, t_.heads.head_dim});
}

AmxPart AmxProducts::part_of(const PartOperands& of, void* scratch) const {
  const auto packed = [](const char* at) { return reinterpret_cast<const bf16*>(at); };
  return {.q = packed(of.q),
          .dout = packed(of.dout),
          .k = packed(of.k),
          .v = packed(of.v),
          .right = packed(of.right),
          .head_dim = t_.heads.head_dim,
          .memory = static_cast<char*>(scratch)};
}

void AmxProducts::attend(int, const SoftmaxTile& tile, const PartOperands& of, void* scratch) const {
  attention_.attend(tile, part_of(of, scratch));
}

void AmxProducts::differentiate(int, const GradientTile& tile, const PartOperands& of, float* dq,
                                void* scratch) const {
  attention_.differentiate(tile, part_of(of, scratch), dq);
}

void AmxProducts::columns(int, const ScoreTile& t, const void* p, const char* b, float* c, void*) const {
  const int64_t d = t_.heads.head_dim, keys = t_.stride_of(t.keys),
                parts = packed_rows(t.queries) / kAmxPanel, heads = t.rows / t.queries;
  const auto add = [&](int64_t key, int64_t count, int64_t part, int64_t of_parts) {
    products_.multiply({.a = reinterpret_cast<const bf16*>(b) + part * kAmxPanel * d,
                        .a_row = kAmxPanel,
                        .a_depth = kAmxPanel * d,
                        .a_panel = kAmxPanel * kAmxPanel,
                        .b = static_cast<const bf16*>(p) + kAmxPanel * (part * t.stride + key),
                        .b_depth = kAmxPanel * t.stride,
                        .b_block = kAmxTileElements,
                        .b_panel = 2 * kAmxTileElements,
                        .c = c + key,
                        .c_row = t_.column_stride(),
                        .m = d,
                        .n = count,
                        .k = of_parts * kAmxPanel,
                        .accumulate = true});
  };
  if (t.first_key + t.keys - 1 <= t.first_query) return add(0, keys, 0, heads * parts);
  for (int64_t key = 0; key < keys; key += kAmxPanel) {
    const int64_t hidden = std::max<int64_t>(t.first_key + key - t.first_query, 0) / kAmxPanel;
    for (int64_t head = 0; head < heads && hidden < parts; ++head)
      add(key, kAmxPanel, head * parts + hidden, parts - hidden);
  }
}

}  // namespace ottava::cpu
