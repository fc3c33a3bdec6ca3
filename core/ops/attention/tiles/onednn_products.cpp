#include "core/ops/attention/tiles/onednn_products.h"

namespace ottava::cpu {
namespace {

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

OnednnProducts::OnednnProducts(const AttentionTiling& t, Pass pass, MatmulCache* cache)
    : StepwiseProducts(t) {
  const int lanes = static_cast<int>(t.lanes);
  for (TileShape shape : shapes_of(t)) {
    const TileProblems p = problems_of(t, shape);
    Gemms gemms{.queries = shape.queries, .keys = shape.keys};
    const auto add = [&](const GemmProblem& problem, const Gemm*& gemm) {
      if (cache) gemm = &cache->tile(problem, lanes);
      scratch_bytes_ =
          std::max(scratch_bytes_, gemm ? gemm->scratch_bytes() : gemm_scratch_bytes(problem, 1));
    };
    add(p.scores, gemms.scores);
    add(p.rows, gemms.rows);
    if (pass == Pass::backward) add(p.columns, gemms.columns);
    gemms_.push_back(gemms);
  }
}

const OnednnProducts::Gemms& OnednnProducts::at(const ScoreTile& tile) const {
  return *std::find_if(gemms_.begin(), gemms_.end(),
                       [&](const Gemms& g) { return g.queries == tile.queries && g.keys == tile.keys; });
}

void OnednnProducts::scores(int lane, const ScoreTile& t, const char* a, const char* b, float* scores,
                            void* scratch) const {
  at(t).scores->run(lane, a, b, scores, scratch);
}

void OnednnProducts::rows(int lane, const ScoreTile& t, const void* p, const char* b, int64_t, float* c,
                          void* scratch) const {
  at(t).rows->run(lane, p, b, c, scratch);
}

void OnednnProducts::columns(int lane, const ScoreTile& t, const void* p, const char* b, float* c,
                             void* scratch) const {
  at(t).columns->run(lane, p, b, c, scratch);
}

}  // namespace ottava::cpu
