#include "core/ops/attention/tiles/panel_products.h"

namespace ottava::cpu {
namespace {

// A head dimension whose rows are half of a panel's. In a panel they would leave every second line of the L1
// cache empty.
constexpr int64_t kHalfPanel = kPanelColumns / 2;
// Queries of a transposed part that go through softmax together.
constexpr int64_t kTogether = 16;

}  // namespace

PanelProducts::PanelProducts(const AttentionTiling& tiling, Pass pass)
    : StepwiseProducts(tiling), pass_(pass) {
  if (pass == Pass::backward) {
    part_rows_ = kPartRows;
    return;
  }
  part_rows_ = kPanelColumns;
  pads_parts_ = true;
  keeps_scores_ = false;
  scratch_bytes_ = kPartKeys * kPanelColumns * size_of(DType::f32);
}

bool PanelProducts::lies_as_rows(Operand operand) const {
  if (pass_ == Pass::forward) return operand != Operand::left;
  return operand == Operand::left || operand == Operand::summed ||
         (operand == Operand::right && t_.heads.head_dim == kHalfPanel);
}

bool PanelProducts::packs_alike(Operand one, Operand other) const {
  return one == other || (lies_as_rows(one) && lies_as_rows(other));
}

int64_t PanelProducts::packed_bytes(Operand operand, int64_t count) const {
  const int64_t d = t_.heads.head_dim;
  if (lies_as_rows(operand)) return 4 * count * d;
  return 4 * kPanelColumns * (operand == Operand::right ? count * panels_of(d) : panels_of(count) * d);
}

void PanelProducts::pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const {
  const int64_t d = t_.heads.head_dim;
  if (lies_as_rows(operand)) {
    const auto copy = t_.dtype == DType::f32 ? kernels_.copy.f32 : kernels_.widen;
    return copy(from, stride, to, {0, count, d});
  }
  const int64_t columns = operand == Operand::right ? d : count,
                depth = operand == Operand::right ? count : d;
  const auto panel_of = (operand == Operand::right ? kernels_.pack : kernels_.pack_transposed)[t_.dtype];
  const int64_t size = size_of(t_.dtype);
  for (int64_t panel = 0; panel < panels_of(columns); ++panel) {
    const int64_t column = panel * kPanelColumns;
    panel_of(static_cast<const char*>(from) + (operand == Operand::right ? column : column * stride) * size,
             stride, std::min(kPanelColumns, columns - column), depth,
             reinterpret_cast<float*>(to) + column * depth);
  }
}

void PanelProducts::attend(int, const SoftmaxTile& part, const PartOperands& of, void* scratch) const {
  const int64_t d = t_.heads.head_dim, columns = round_up(part.tile.rows, kTogether);
  SoftmaxTile step = part;
  step.tile.scores = static_cast<float*>(scratch);
  // Keys are taken up to multiples of kPartKeys, so that sums do not depend on where documents begin.
  const int64_t first = first_visible_key(part.tile.document_start, part.tile.rows) - part.tile.first_key;
  for (int64_t key = std::max<int64_t>(first, 0), end = 0; key < part.tile.keys; key = end) {
    end = std::min(key / kPartKeys * kPartKeys + kPartKeys, part.tile.keys);
    step.tile.first_key = part.tile.first_key + key;
    step.tile.keys = end - key;
    kernels_.multiply({.a = reinterpret_cast<const float*>(of.k) + key * d,
                       .a_row = d,
                       .a_depth = 1,
                       .b = reinterpret_cast<const float*>(of.q),
                       .c = step.tile.scores,
                       .c_row = kPanelColumns,
                       .m = step.tile.keys,
                       .n = columns,
                       .k = d});
    kernels_.softmax_of_columns(step);
    kernels_.multiply({.a = reinterpret_cast<const float*>(of.right) + key * d,
                       .a_row = 1,
                       .a_depth = d,
                       .b = step.tile.scores,
                       .c = part.sums,
                       .c_row = kPanelColumns,
                       .m = d,
                       .n = columns,
                       .k = step.tile.keys,
                       .accumulate = true});
  }
}

float* PanelProducts::rows_of_sums(float* sums, int64_t rows, float* to) const {
  const int64_t d = t_.heads.head_dim;
  for (int64_t row = 0; row < rows; row += kPanelColumns)
    kernels_.transpose(sums + row * d, kPanelColumns, to + row * d,
                       {0, std::min(kPanelColumns, rows - row), d});
  return to;
}

void PanelProducts::scores(int, const ScoreTile& t, const char* a, const char* b, float* scores,
                           void*) const {
  const int64_t d = t_.heads.head_dim;
  kernels_.multiply({.a = reinterpret_cast<const float*>(a),
                     .a_row = d,
                     .a_depth = 1,
                     .b = reinterpret_cast<const float*>(b),
                     .b_panel = kPanelColumns * d,
                     .c = scores,
                     .c_row = t.stride,
                     .m = t.rows,
                     .n = panels_of(t.keys) * kPanelColumns,
                     .k = d});
}

void PanelProducts::rows(int, const ScoreTile& t, const void* p, const char* b, int64_t all, float* c,
                         void*) const {
  const int64_t d = t_.heads.head_dim;
  kernels_.multiply({.a = static_cast<const float*>(p),
                     .a_row = t.stride,
                     .a_depth = 1,
                     .b = reinterpret_cast<const float*>(b),
                     .b_panel = kPanelColumns * all,
                     .b_depth = lies_as_rows(Operand::right) ? d : kPanelColumns,
                     .c = c,
                     .c_row = d,
                     .m = t.rows,
                     .n = d,
                     .k = t.keys,
                     .accumulate = true});
}

void PanelProducts::columns(int, const ScoreTile& t, const void* p, const char* b, float* c, void*) const {
  const int64_t d = t_.heads.head_dim;
  const auto add = [&](int64_t key, int64_t keys, int64_t row, int64_t rows) {
    kernels_.multiply({.a = reinterpret_cast<const float*>(b) + row * d,
                       .a_row = 1,
                       .a_depth = d,
                       .b = static_cast<const float*>(p) + row * t.stride + key,
                       .b_panel = kPanelColumns,
                       .b_depth = t.stride,
                       .c = c + key,
                       .c_row = t_.column_stride(),
                       .m = d,
                       .n = keys,
                       .k = rows,
                       .accumulate = true});
  };
  const int64_t keys = panels_of(t.keys) * kPanelColumns;
  if (t.first_key + t.keys - 1 <= t.first_query) return add(0, keys, 0, t.rows);
  for (int64_t key = 0; key < keys; key += kPanelColumns) {
    const int64_t hidden = std::max<int64_t>(t.first_key + key - t.first_query, 0);
    for (int64_t head = 0; head < t.rows && hidden < t.queries; head += t.queries)
      add(key, kPanelColumns, head + hidden, t.queries - hidden);
  }
}

}  // namespace ottava::cpu
