#include <algorithm>

#include "core/cpu/matmul_cache.h"
#include "core/ops/matmul/matmul_kernels.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"

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
// Bytes of widened B at a time: all terms of some columns. An f32 result can be added to, so there fewer
// bytes come first, of all columns and some terms, which the caches hold longer, and A is widened once: the
// gradient of a weight [256,768] over 16,384 tokens is made in 0.94 of the time, where other programs take
// memory's bandwidth in 0.88.
constexpr int64_t kPanelsBytes = int64_t{32} << 20, kDeepPanelsBytes = int64_t{8} << 20;

bool rounds(const Matmul& args) { return args.out.dtype != DType::f32; }

struct Tiling {
  int64_t m, n, k, lanes;
  bool a_transposed, b_transposed;
  int64_t unit;                       ///< rows of which a block is a multiple
  int64_t strip;                      ///< columns whose panels are there at a time
  int64_t depth;                      ///< terms whose panels are
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
  const int64_t columns = panels_of(t.n) * kPanelColumns;
  t.depth = t.k;
  if (!rounds(args))
    t.depth = std::min(std::max<int64_t>(kDeepPanelsBytes / (4 * columns * kDepth), 1) * kDepth, t.k);
  const int64_t most = std::max<int64_t>(kPanelsBytes / (4 * t.depth * kPanelColumns), 1) * kPanelColumns;
  t.strip = std::min(most, columns);
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
    lanes = aligned(t.strip * t.depth * 4);
    c = aligned(rows * std::min(kDepth, t.k) * 4);
    lane = c + (sums ? aligned(rows * stride * 4) : 0);
    bytes = lanes + t.lanes * lane;
  }
  static int64_t aligned(int64_t bytes) { return round_up(bytes, 256); }
  int64_t stride;  ///< of sums
  int64_t lanes, lane, c, bytes;
};

}  // namespace

int64_t matmul_widened_workspace_bytes(const Matmul& args) {
  if (widens_gradient_by_blocks(args)) return widened_gradient_workspace_bytes(args);
  return Layout(tiling_of(args), rounds(args)).bytes;
}

namespace {

/// The part of B whose panels are there: columns [first_column, first_column + columns) of terms [first_term,
/// first_term + depth).
struct Part {
  int64_t first_column, columns, first_term, depth;
};

class Product {
 public:
  Product(Stream& stream, const Matmul& args)
      : args_(args),
        t_(tiling_of(args)),
        layout_(t_, rounds(args)),
        a_(a_of(args)),
        out_(out_of(args)),
        workspace_(static_cast<char*>(matmul_workspace(stream, layout_.bytes))),
        panels_(reinterpret_cast<float*>(workspace_)),
        kernels_(matmul_kernels()) {}

  void run() const {
    for (int64_t n0 = 0; n0 < t_.n; n0 += t_.strip) {
      for (int64_t p0 = 0; p0 < t_.k; p0 += t_.depth)
        run({n0, std::min(t_.strip, t_.n - n0), p0, std::min(t_.depth, t_.k - p0)});
    }
  }

 private:
  void run(const Part& part) const {
    const int64_t panels = panels_of(part.columns);
    parallel_for_index(panels, 1, [&](int64_t panel) { pack(part, panel); });
    const int64_t column_blocks = std::min(t_.column_blocks, panels);
    parallel_for_each(t_.row_blocks * column_blocks, [&](int64_t task) {
      const int64_t block = task % column_blocks;
      multiply(part, task / column_blocks, panels * block / column_blocks,
               panels * (block + 1) / column_blocks);
    });
  }

  void pack(const Part& part, int64_t panel) const {
    const int64_t first = part.first_column + panel * kPanelColumns,
                  columns = std::min(kPanelColumns, t_.n - first);
    const bf16* b = args_.b.as<bf16>();
    float* to = panels_ + panel * kPanelColumns * part.depth;
    if (t_.b_transposed) {
      kernels_.pack_transposed(b + first * t_.k + part.first_term, t_.k, columns, part.depth, to);
    } else {
      kernels_.pack(b + part.first_term * t_.n + first, t_.n, columns, part.depth, to);
    }
  }

  /// A block of rows of the result times panels [panel, end).
  void multiply(const Part& part, int64_t row_block, int64_t panel, int64_t end) const {
    char* own = workspace_ + layout_.lanes + (t_.lanes == 1 ? 0 : parallel_lane()) * layout_.lane;
    float* a_block = reinterpret_cast<float*>(own);
    const int64_t m0 = t_.first_row(row_block), m = t_.first_row(row_block + 1) - m0;
    if (args_.result == MatmulResult::symmetric)
      panel = std::max(panel, (m0 - part.first_column) / kPanelColumns);
    if (panel >= end) return;
    const int64_t first = panel * kPanelColumns,
                  columns = std::min(end * kPanelColumns, part.columns) - first;
    const bool is_rounded = rounds(args_);
    void* out = out_.at(m0, part.first_column + first);
    PanelProduct product{
        .a = a_block,
        .a_depth = 1,
        .b_panel = kPanelColumns * part.depth,
        .c = is_rounded ? reinterpret_cast<float*>(own + layout_.c) : static_cast<float*>(out),
        .c_row = is_rounded ? layout_.stride : out_.stride,
        .m = m,
        .n = columns};
    for (int64_t p = 0; p < part.depth; p += kDepth) {
      product.k = std::min(kDepth, part.depth - p);
      product.a_row = product.k;
      widen(part.first_term + p, product.k, m0, m, a_block);
      product.b = panels_ + panel * product.b_panel + p * kPanelColumns;
      product.accumulate = args_.accumulate || part.first_term + p > 0;
      product.ahead[0] = next_terms(part.first_term + p + product.k, part.first_term + part.depth, m0, m);
      if (is_rounded && p + product.k == part.depth)
        product.ahead[1] = {static_cast<char*>(out), out_.stride * 2, m, columns * 2,
                            MatrixAhead::Use::write};
      kernels_.multiply(product);
    }
    if (is_rounded)
      kernels_.narrow(product.c, product.c_row, static_cast<bf16*>(out), out_.stride, {0, m, columns});
  }

  /// What of A is widened next: terms of the same rows, up to `end`.
  MatrixAhead next_terms(int64_t p0, int64_t end, int64_t m0, int64_t rows) const {
    if (t_.a_transposed || p0 == end) return {};
    return {static_cast<const char*>(a_.at(m0, p0)), a_.stride * 2, rows, std::min(kDepth, end - p0) * 2};
  }

  /// `terms` terms from p0 of `rows` rows of A from m0.
  void widen(int64_t p0, int64_t terms, int64_t m0, int64_t rows, float* to) const {
    const bf16* a = static_cast<const bf16*>(a_.data);
    if (t_.a_transposed) {
      kernels_.widen_transposed(a + p0 * a_.stride + m0, a_.stride, to, terms, {0, terms, rows});
    } else {
      kernels_.widen(a + m0 * a_.stride + p0, a_.stride, to, terms, {0, rows, terms});
    }
  }

  const Matmul& args_;
  const Tiling t_;
  const Layout layout_;
  const MatrixRows a_, out_;
  char* workspace_;
  float* panels_;
  const MatmulKernels& kernels_;
};

}  // namespace

void matmul_widened(Stream& stream, const Matmul& args) {
  if (widens_gradient_by_blocks(args)) return widened_gradient(stream, args);
  Product(stream, args).run();
}

}  // namespace ottava::cpu
