#include <algorithm>

#include "core/cpu/matmul_cache.h"
#include "core/ops/matmul/matmul_kernels.h"
#include "core/parallel_for.h"
#include "core/round_up.h"

// B is widened once, into panels that all threads share; a task then takes a block of rows of the result and
// some of its columns, and widens its part of A by and by. Each element of A is widened once for every block
// of at most 1024 columns, each of B once for all rows.
namespace ottava::cpu {
namespace {

// 112 rows (8 groups of 14, 19 of at most 6) x 256 of A are 112 KiB, x 1024 columns of sums 448 KiB: they
// stay in a core's L2 cache, beside a panel's 256 x 32 in the L1 cache. Rows of a transposed A are columns of
// what is stored, which are transposed by sixteens: the product of an A with terms far apart takes a tenth
// longer.
constexpr int64_t kRows = 112, kColumns = 1024, kDepth = 256, kTransposedUnit = 16;
constexpr int64_t kPadding = 16;  ///< of a row of sums, so that rows do not share the L1 cache's sets
constexpr int64_t kPanelsBytes = int64_t{32} << 20;  ///< of widened B at a time

struct Tiling {
  int64_t m, n, k, lanes;
  bool a_transposed, b_transposed;
  int64_t unit;                       ///< rows of which a block is a multiple
  int64_t strip;                      ///< columns whose panels are there at a time
  int64_t row_blocks, column_blocks;  ///< of a strip

  int64_t units() const { return pieces_of(m, unit); }
  int64_t first_row(int64_t block) const { return std::min(units() * block / row_blocks * unit, m); }
};

Tiling tiling_of(const Matmul& args) {
  const MatrixRows a = a_of(args), out = out_of(args);
  Tiling t{.m = out.rows,
           .n = out.cols,
           .lanes = parallel_threads(),
           .a_transposed = args.kind == MatmulKind::weight_gradient,
           .b_transposed = args.kind == MatmulKind::forward};
  t.k = t.a_transposed ? a.rows : a.cols;
  const int64_t most = std::max<int64_t>(kPanelsBytes / (4 * t.k * kPanelColumns), 1) * kPanelColumns;
  t.strip = std::min(most, panels_of(t.n) * kPanelColumns);
  t.unit = t.a_transposed ? kTransposedUnit : 1;
  t.row_blocks = pieces_of(t.m, kRows);
  t.row_blocks = round_up(t.row_blocks, t.lanes);
  t.row_blocks = std::min(t.row_blocks, t.units());
  // A few tasks per thread, so that none waits long for the last.
  const int64_t wanted = pieces_of(4 * t.lanes, t.row_blocks);
  t.column_blocks =
      std::min(std::max(pieces_of(t.strip, kColumns), t.lanes == 1 ? 1 : wanted), t.strip / kPanelColumns);
  return t;
}

/// Memory of one product: panels of B, then each thread's part of A and, for a bf16 result, sums.
struct Layout {
  explicit Layout(const Tiling& t, bool sums) {
    const int64_t rows = std::min(pieces_of(t.units(), t.row_blocks) * t.unit, t.m);
    const int64_t panels = t.strip / kPanelColumns;
    stride = pieces_of(panels, t.column_blocks) * kPanelColumns + kPadding;
    lanes = aligned(t.strip * t.k * 4);
    c = aligned(rows * std::min(kDepth, t.k) * 4);
    lane = c + (sums ? aligned(rows * stride * 4) : 0);
    bytes = lanes + t.lanes * lane;
  }
  static int64_t aligned(int64_t bytes) { return round_up(bytes, 256); }
  int64_t stride;  ///< of sums
  int64_t lanes, lane, c, bytes;
};

bool rounds(const Matmul& args) { return args.out.dtype != DType::f32; }

}  // namespace

int64_t matmul_widened_workspace_bytes(const Matmul& args) {
  return Layout(tiling_of(args), rounds(args)).bytes;
}

void matmul_widened(Stream& stream, const Matmul& args) {
  const Tiling t = tiling_of(args);
  const Layout layout(t, rounds(args));
  char* workspace = static_cast<char*>(matmul_workspace(stream, layout.bytes));
  float* b_panels = reinterpret_cast<float*>(workspace);
  const auto& kernels = matmul_kernels();
  const MatrixRows a_rows = a_of(args), out = out_of(args);
  const bf16* a = static_cast<const bf16*>(a_rows.data);
  const bf16* b = args.b.as<bf16>();

  for (int64_t n0 = 0; n0 < t.n; n0 += t.strip) {
    const int64_t strip = std::min(t.strip, t.n - n0), panels = panels_of(strip);
    parallel_for_index(panels, 1, [&](int64_t panel) {
      const int64_t first = n0 + panel * kPanelColumns, columns = std::min(kPanelColumns, t.n - first);
      float* to = b_panels + panel * kPanelColumns * t.k;
      if (t.b_transposed) {
        kernels.pack_transposed(b + first * t.k, t.k, columns, t.k, to);
      } else {
        kernels.pack(b + first, t.n, columns, t.k, to);
      }
    });
    const int64_t column_blocks = std::min(t.column_blocks, panels);
    parallel_for_each(t.row_blocks * column_blocks, [&](int64_t task) {
      char* own = workspace + layout.lanes + (t.lanes == 1 ? 0 : parallel_lane()) * layout.lane;
      float* a_block = reinterpret_cast<float*>(own);
      const int64_t block = task / column_blocks, part = task % column_blocks;
      const int64_t m0 = t.first_row(block), m = t.first_row(block + 1) - m0;
      int64_t panel = panels * part / column_blocks;
      const int64_t end = panels * (part + 1) / column_blocks;
      if (args.result == MatmulResult::symmetric) panel = std::max(panel, (m0 - n0) / kPanelColumns);
      if (panel >= end) return;
      const int64_t first = panel * kPanelColumns, columns = std::min(end * kPanelColumns, strip) - first;
      PanelProduct product{.a = a_block,
                           .a_depth = 1,
                           .b_panel = kPanelColumns * t.k,
                           .c = rounds(args) ? reinterpret_cast<float*>(own + layout.c)
                                             : static_cast<float*>(out.at(m0, n0 + first)),
                           .c_row = rounds(args) ? layout.stride : out.stride,
                           .m = m,
                           .n = columns};
      for (int64_t p = 0; p < t.k; p += kDepth) {
        product.k = std::min(kDepth, t.k - p);
        product.a_row = product.k;
        if (t.a_transposed) {
          kernels.widen_transposed(a + p * a_rows.stride + m0, a_rows.stride, a_block, product.k,
                                   {0, product.k, m});
        } else {
          kernels.widen(a + m0 * a_rows.stride + p, a_rows.stride, a_block, product.k, {0, m, product.k});
        }
        product.b = b_panels + panel * product.b_panel + p * kPanelColumns;
        product.accumulate = args.accumulate || p > 0;
        kernels.multiply(product);
      }
      if (rounds(args))
        kernels.narrow(product.c, product.c_row, static_cast<bf16*>(out.at(m0, n0 + first)), out.stride,
                       {0, m, columns});
    });
  }
}

}  // namespace ottava::cpu
