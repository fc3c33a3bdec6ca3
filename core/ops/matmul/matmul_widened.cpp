#include <algorithm>
#include <array>

#include "core/cpu/matmul_cache.h"
#include "core/ops/matmul/matmul_kernels.h"
#include "core/parallel_for.h"

namespace ottava::cpu {
namespace {

using Stored = GemmProblem::Stored;
using Result = GemmProblem::Result;

// A panel of each operand and a tile of the result are 3 x 256 KiB at most: they stay in a core's L2 cache.
// Each widened element is used `edge` times, so widening costs a few percent of the products.
constexpr int64_t kEdge = 256, kSmallestEdge = 64, kDepth = 256;

struct Tiling {
  int64_t m, n, k, edge, lanes;
  Stored a, b;
  int64_t rows() const { return (m + edge - 1) / edge; }
  int64_t cols() const { return (n + edge - 1) / edge; }
  int64_t panels() const { return (k + kDepth - 1) / kDepth; }
};

Tiling tiling_of(const Matmul& args) {
  bool a_transposed = args.kind == MatmulKind::weight_gradient,
       b_transposed = args.kind == MatmulKind::forward;
  const MatrixRows a = a_of(args), out = out_of(args);
  Tiling t{.m = out.rows,
           .n = out.cols,
           .k = a_transposed ? a.rows : a.cols,
           .edge = kEdge,
           .lanes = parallel_threads(),
           .a = a_transposed ? Stored::transposed : Stored::plain,
           .b = b_transposed ? Stored::transposed : Stored::plain};
  // Small results: smaller tiles rather than idle threads.
  while (t.edge > kSmallestEdge && t.rows() * t.cols() < 2 * t.lanes) t.edge /= 2;
  return t;
}

/// The f32 product of one pair of panels; `last` says which extents are the remainder of the division into
/// tiles.
struct LastOf {
  bool m, n, k;
};
GemmProblem problem_of(const Tiling& t, LastOf last, Result result, int64_t ldc) {
  int64_t m = last.m ? t.m - (t.rows() - 1) * t.edge : t.edge;
  int64_t n = last.n ? t.n - (t.cols() - 1) * t.edge : t.edge;
  int64_t k = last.k ? t.k - (t.panels() - 1) * kDepth : kDepth;
  return {.a = t.a,
          .b = t.b,
          .result = result,
          .m = m,
          .n = n,
          .k = k,
          .lda = t.a == Stored::plain ? k : m,
          .ldb = t.b == Stored::plain ? n : k,
          .ldc = ldc == 0 ? n : ldc};
}

template <class F>
void for_each_problem(const Tiling& t, int64_t ldc, F&& visit) {
  for (int i = 0; i < 16; ++i) {
    LastOf last{(i & 1) != 0, (i & 2) != 0, (i & 4) != 0};
    bool exists = (last.m || t.rows() > 1) && (last.n || t.cols() > 1) && (last.k || t.panels() > 1);
    if (exists) visit(i, problem_of(t, last, i & 8 ? Result::accumulate : Result::overwrite, ldc));
  }
}

int64_t ldc_of(const Matmul& args) { return args.out.dtype == DType::f32 ? args.out.cols() : 0; }

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t panel_bytes(const Tiling& t) { return aligned(t.edge * kDepth * 4); }
int64_t tile_bytes(const Tiling& t) { return aligned(t.edge * t.edge * 4); }
int64_t lane_bytes(const Tiling& t, int64_t scratch) {
  return 2 * panel_bytes(t) + tile_bytes(t) + aligned(scratch);
}

}  // namespace

int64_t matmul_widened_workspace_bytes(const Matmul& args) {
  Tiling t = tiling_of(args);
  int64_t scratch = 0;
  for_each_problem(t, ldc_of(args), [&](int, const GemmProblem& problem) {
    scratch = std::max(scratch, gemm_scratch_bytes(problem, 1));
  });
  return t.lanes * lane_bytes(t, scratch);
}

void matmul_widened(Stream& stream, const Matmul& args) {
  const Tiling t = tiling_of(args);
  std::array<const Gemm*, 16> gemms{};
  int64_t scratch_bytes = 0;
  for_each_problem(t, ldc_of(args), [&](int i, const GemmProblem& problem) {
    gemms[static_cast<size_t>(i)] = &stream.matmul_cache().tile(problem, static_cast<int>(t.lanes));
    scratch_bytes = std::max(scratch_bytes, gemms[static_cast<size_t>(i)]->scratch_bytes());
  });
  const int64_t per_lane = lane_bytes(t, scratch_bytes);
  char* workspace = static_cast<char*>(matmul_workspace(stream, t.lanes * per_lane));
  const auto& kernels = matmul_kernels();
  const MatrixRows a_rows = a_of(args), out = out_of(args);
  const auto *a = static_cast<const bf16*>(a_rows.data), *b = args.b.as<bf16>();
  const bool direct = args.out.dtype == DType::f32;

  parallel_for_each(t.rows() * t.cols(), [&](int64_t tile) {
    const int lane = t.lanes == 1 ? 0 : parallel_lane();
    char* own = workspace + lane * per_lane;
    float* a_panel = reinterpret_cast<float*>(own);
    float* b_panel = reinterpret_cast<float*>(own + panel_bytes(t));
    float* c_tile = reinterpret_cast<float*>(own + 2 * panel_bytes(t));
    void* scratch = own + 2 * panel_bytes(t) + tile_bytes(t);
    const int64_t row = tile / t.cols(), col = tile % t.cols();
    const int64_t m0 = row * t.edge, n0 = col * t.edge, m = std::min(t.edge, t.m - m0),
                  n = std::min(t.edge, t.n - n0);
    float* c = direct ? static_cast<float*>(out.at(m0, n0)) : c_tile;
    for (int64_t p = 0; p < t.panels(); ++p) {
      const int64_t k0 = p * kDepth, k = std::min(kDepth, t.k - k0);
      if (t.a == Stored::plain) {
        kernels.widen(a + m0 * a_rows.stride + k0, a_rows.stride, a_panel, k, {0, m, k});
      } else {
        kernels.widen(a + k0 * a_rows.stride + m0, a_rows.stride, a_panel, m, {0, k, m});
      }
      if (t.b == Stored::plain) {
        kernels.widen(b + k0 * t.n + n0, t.n, b_panel, n, {0, k, n});
      } else {
        kernels.widen(b + n0 * t.k + k0, t.k, b_panel, k, {0, n, k});
      }
      const bool accumulate = p > 0 || args.accumulate;
      const int which = (row == t.rows() - 1 ? 1 : 0) | (col == t.cols() - 1 ? 2 : 0) |
                        (p == t.panels() - 1 ? 4 : 0) | (accumulate ? 8 : 0);
      gemms[static_cast<size_t>(which)]->run(lane, a_panel, b_panel, c, scratch);
    }
    if (!direct) kernels.narrow(c_tile, n, static_cast<bf16*>(out.at(m0, n0)), out.stride, {0, m, n});
  });
}

}  // namespace ottava::cpu
