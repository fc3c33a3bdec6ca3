#include "core/ops/attention/attention_tiles.h"

#include <bit>

#include "core/ops/attention/attention_kernels.h"
#include "core/parallel_for.h"

namespace ottava::cpu {
namespace {

// 128 rows keep the wasted upper half of the diagonal's tiles small; 256 keys spread each row's bookkeeping
// over 16 vectors. Scores and their gradients are 2 x 128 KiB: an L2 cache of 512 KiB holds a tile's work.
// Measured flat around this choice: 64 rows cost 15%, 256 rows or 512 keys gain at most 10% at head dimension
// 128 and nothing below.
constexpr int64_t kRows = 128, kKeys = 256, kFewestQueries = 16;

struct TileShape {
  int64_t queries, keys;
  bool operator==(const TileShape&) const = default;
};

/// Shapes that occur: each tile of queries meets whole tiles of keys and, at the diagonal, a part of one.
std::vector<TileShape> shapes_of(const AttentionTiling& t) {
  std::vector<TileShape> shapes;
  auto add = [&](TileShape shape) {
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  };
  for (int64_t first = 0; first < t.sequence; first += t.queries) {
    const int64_t queries = std::min(t.queries, t.sequence - first),
                  visible = t.first_query + first + queries;
    if (visible > t.keys) add({queries, t.keys});
    add({queries, visible - (visible - 1) / t.keys * t.keys});
  }
  return shapes;
}

struct TileProblems {
  GemmProblem scores, rows, columns;
};
TileProblems problems_of(const AttentionTiling& t, TileShape shape) {
  using Stored = GemmProblem::Stored;
  const int64_t d = t.heads.head_dim, rows = t.group * shape.queries, stride = t.stride_of(shape.keys);
  const GemmProblem packed{.input = t.tile, .lda = d, .ldb = d, .ldc = d};
  TileProblems p{packed, packed, packed};
  p.scores.b = Stored::transposed;
  p.scores.m = rows, p.scores.n = shape.keys, p.scores.k = d, p.scores.ldc = stride;
  p.rows.result = p.columns.result = GemmProblem::Result::accumulate;
  p.rows.m = rows, p.rows.n = d, p.rows.k = shape.keys, p.rows.lda = stride;
  p.columns.a = Stored::transposed;
  p.columns.m = shape.keys, p.columns.n = d, p.columns.k = rows, p.columns.lda = stride;
  return p;
}

}  // namespace

AttentionTiling::AttentionTiling(Bf16Products products, DType dtype, AttentionHeads heads, int64_t batch,
                                 int64_t sequence, const SeparateKeys& apart)
    : dtype(dtype),
      tile(dtype == DType::bf16 && products == Bf16Products::direct ? DType::bf16 : DType::f32),
      heads(heads),
      batch(batch),
      sequence(sequence),
      first_query(apart.first_query),
      key_sequence(apart.empty() ? sequence : apart.values.rows() / batch),
      first_kv(apart.first_head),
      kv_heads(apart.empty() ? heads.kv_heads : apart.values.cols() / (2 * heads.head_dim)),
      group(heads.heads / heads.kv_heads),
      // A power of two, so that few shapes occur at the diagonal.
      queries(std::max(kFewestQueries, static_cast<int64_t>(std::bit_floor(
                                           static_cast<uint64_t>(std::max<int64_t>(kRows / group, 1)))))),
      keys(kKeys),
      lanes(parallel_threads()) {}

TileProducts::TileProducts(MatmulCache& cache, const AttentionTiling& t, Pass pass)
    : t_(t), kernels_(attention_kernels()) {
  if (!packs_alike(t)) return;
  const int lanes = static_cast<int>(t.lanes);
  for (TileShape shape : shapes_of(t)) {
    const TileProblems p = problems_of(t, shape);
    Direct products{shape.queries, shape.keys, &cache.tile(p.scores, lanes), &cache.tile(p.rows, lanes),
                    nullptr};
    if (pass == Pass::backward) products.columns = &cache.tile(p.columns, lanes);
    for (const Gemm* gemm : {products.scores, products.rows, products.columns}) {
      if (gemm) scratch_bytes_ = std::max(scratch_bytes_, gemm->scratch_bytes());
    }
    direct_.push_back(products);
  }
}

const TileProducts::Direct& TileProducts::at(const ScoreTile& tile) const {
  return *std::find_if(direct_.begin(), direct_.end(),
                       [&](const Direct& p) { return p.queries == tile.queries && p.keys == tile.keys; });
}

int64_t TileProducts::scratch_bytes(const AttentionTiling& t, Pass pass) {
  if (!packs_alike(t)) return 0;
  int64_t bytes = 0;
  for (TileShape shape : shapes_of(t)) {
    const TileProblems p = problems_of(t, shape);
    bytes = std::max({bytes, gemm_scratch_bytes(p.scores, 1), gemm_scratch_bytes(p.rows, 1)});
    if (pass == Pass::backward) bytes = std::max(bytes, gemm_scratch_bytes(p.columns, 1));
  }
  return bytes;
}

int64_t TileProducts::packed_bytes(const AttentionTiling& t, Operand operand, int64_t count) {
  const int64_t d = t.heads.head_dim;
  if (packs_alike(t) || operand == Operand::left) return t.tile_bytes(count * d);
  return 4 * kPanelColumns * (operand == Operand::right ? count * panels_of(d) : panels_of(count) * d);
}

void TileProducts::pack(Operand operand, const void* from, int64_t stride, int64_t count, char* to) const {
  const int64_t d = t_.heads.head_dim;
  if (packs_alike(t_) || operand == Operand::left) {
    const auto copy = t_.dtype == t_.tile ? kernels_.copy[t_.tile] : kernels_.widen;
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

void TileProducts::scores(int lane, const ScoreTile& t, const char* a, const char* b, float* scores,
                          void* scratch) const {
  if (packs_alike(t_)) return at(t).scores->run(lane, a, b, scores, scratch);
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

void TileProducts::rows(int lane, const ScoreTile& t, const void* p, const char* b, int64_t all, float* c,
                        void* scratch) const {
  if (packs_alike(t_)) return at(t).rows->run(lane, p, b, c, scratch);
  const int64_t d = t_.heads.head_dim;
  kernels_.multiply({.a = static_cast<const float*>(p),
                     .a_row = t.stride,
                     .a_depth = 1,
                     .b = reinterpret_cast<const float*>(b),
                     .b_panel = kPanelColumns * all,
                     .c = c,
                     .c_row = d,
                     .m = t.rows,
                     .n = d,
                     .k = t.keys,
                     .accumulate = true});
}

void TileProducts::columns(int lane, const ScoreTile& t, const void* p, const char* b, float* c,
                           void* scratch) const {
  if (packs_alike(t_)) return at(t).columns->run(lane, p, b, c, scratch);
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

const float* TileProducts::rows_of_columns(const float* c, int64_t keys, float* to) const {
  if (packs_alike(t_)) return c;
  kernels_.transpose(c, t_.column_stride(), to, {0, keys, t_.heads.head_dim});
  return to;
}

char* attention_workspace(std::string_view op, const Tensor& workspace, int64_t bytes) {
  if (workspace.dtype != DType::u8 || workspace.empty() || workspace.bytes() < bytes) {
    fail<MemoryError>(
        op, "workspace is {}, expected u8 with at least {} elements: attention_workspace_bytes says how many",
        describe(workspace), bytes);
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % 64 != 0) {
    fail<MemoryError>(op, "workspace at {} is not aligned to 64 bytes", workspace.data);
  }
  return static_cast<char*>(workspace.data);
}

int64_t attention_workspace_bytes(Bf16Products products, Pass pass, DType dtype, AttentionHeads heads,
                                  int64_t batch, int64_t sequence, const SeparateKeys& keys) {
  const AttentionTiling t(products, dtype, heads, batch, sequence, keys);
  const int64_t scratch = TileProducts::scratch_bytes(t, pass);
  return pass == Pass::forward ? forward_workspace_bytes(t, scratch) : backward_workspace_bytes(t, scratch);
}

}  // namespace ottava::cpu
