#include "core/ops/attention/attention_tiles.h"

#include <bit>

#include "core/cpu/isa.h"
#include "core/ops/attention/attention_kernels.h"
#include "core/parallel_for.h"

namespace ottava::cpu {
namespace {

// 128 rows keep the wasted upper half of the diagonal's tiles small; 256 keys spread each row's bookkeeping
// over 16 vectors. Scores and their gradients are 2 x 128 KiB: an L2 cache of 512 KiB holds a tile's work.
// Measured flat around this choice: 64 rows cost 15%, 256 rows or 512 keys gain at most 10% at head dimension
// 128 and nothing below.
constexpr int64_t kRows = 128, kKeys = 256, kFewestQueries = 16;

// bf16 operands pay where they reach AMX. Elsewhere f32 is at least as fast, and the probabilities need no
// rounding.
DType tile_dtype(DType dtype) {
  return dtype == DType::bf16 && isa() >= Isa::avx512 && dnnl_uses_amx() ? DType::bf16 : DType::f32;
}

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
    const int64_t queries = std::min(t.queries, t.sequence - first), visible = first + queries;
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

AttentionTiling::AttentionTiling(DType dtype, AttentionHeads heads, int64_t batch, int64_t sequence)
    : dtype(dtype),
      tile(tile_dtype(dtype)),
      heads(heads),
      batch(batch),
      sequence(sequence),
      group(heads.heads / heads.kv_heads),
      // A power of two, so that few shapes occur at the diagonal.
      queries(std::max(kFewestQueries, static_cast<int64_t>(std::bit_floor(
                                           static_cast<uint64_t>(std::max<int64_t>(kRows / group, 1)))))),
      keys(kKeys),
      lanes(parallel_threads()) {}

TileGemms::TileGemms(MatmulCache& cache, const AttentionTiling& t, Pass pass) {
  const int lanes = static_cast<int>(t.lanes);
  for (TileShape shape : shapes_of(t)) {
    const TileProblems p = problems_of(t, shape);
    TileProducts products{shape.queries, shape.keys, &cache.tile(p.scores, lanes), &cache.tile(p.rows, lanes),
                          nullptr};
    if (pass == Pass::backward) products.columns = &cache.tile(p.columns, lanes);
    for (const Gemm* gemm : {products.scores, products.rows, products.columns}) {
      if (gemm) scratch_bytes_ = std::max(scratch_bytes_, gemm->scratch_bytes());
    }
    shapes_.push_back(products);
  }
}

const TileProducts& TileGemms::at(int64_t queries, int64_t keys) const {
  return *std::find_if(shapes_.begin(), shapes_.end(),
                       [&](const TileProducts& p) { return p.queries == queries && p.keys == keys; });
}

int64_t TileGemms::scratch_bytes(const AttentionTiling& t, Pass pass) {
  int64_t bytes = 0;
  for (TileShape shape : shapes_of(t)) {
    const TileProblems p = problems_of(t, shape);
    bytes = std::max({bytes, gemm_scratch_bytes(p.scores, 1), gemm_scratch_bytes(p.rows, 1)});
    if (pass == Pass::backward) bytes = std::max(bytes, gemm_scratch_bytes(p.columns, 1));
  }
  return bytes;
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

int64_t attention_workspace_bytes(Pass pass, DType dtype, AttentionHeads heads, int64_t batch,
                                  int64_t sequence) {
  const AttentionTiling t(dtype, heads, batch, sequence);
  const int64_t scratch = TileGemms::scratch_bytes(t, pass);
  return pass == Pass::forward ? forward_workspace_bytes(t, scratch) : backward_workspace_bytes(t, scratch);
}

}  // namespace ottava::cpu
