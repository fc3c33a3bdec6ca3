#include "core/ops/matmul/matmul_pairs.h"

#include <algorithm>

#include "core/cpu/pair_product.h"
#include "core/parallel_for.h"

// B is packed into panels of 32 columns that all threads share. A task takes a block of rows, packs its part
// of A into memory of its own, which stays in the core's L2 cache, and makes one block of columns after
// another.
namespace ottava::cpu {
namespace {

using Stored = GemmProblem::Stored;

// 256 terms of a panel are 16 KiB: B's stays in the L1 cache while A's come from the L2 cache, where those of
// 256 rows take 128 KiB and a block's sums 512 KiB. A as a whole may be larger: it is read from end to end.
constexpr int64_t kChunkTerms = 256, kMostRows = 256, kBlockColumns = 512, kRowsBytes = int64_t{2} << 20;
constexpr int64_t kStripBytes = int64_t{32} << 20;  ///< of packed B at a time
constexpr int64_t kGroup = 8;                       ///< panels of B that are packed together
constexpr int64_t kFewest = 64;  ///< rows, columns and terms: below it packing costs too much

int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

struct PairBlocks {
  explicit PairBlocks(const GemmProblem& p)
      : chunks(parts_of(p.k, kChunkTerms)),
        depth(whole_pair_panels(parts_of(p.k, chunks))),
        panel(chunks * depth * kPairPanel),
        lanes(parallel_threads()) {
    while (rows > kPairPanel && (rows * chunks * depth * 2 > kRowsBytes || rows >= 2 * p.m)) rows /= 2;
    strip = std::min(parts_of(p.n, kPairPanel), std::max(kStripBytes / (2 * panel), kGroup));
    row_blocks = parts_of(p.m, rows);
    // A few tasks per thread, so that none waits long for the last.
    column_parts =
        lanes == 1 ? 1
                   : std::min(parts_of(2 * lanes, row_blocks), parts_of(strip, kBlockColumns / kPairPanel));
  }
  int64_t strip_bytes() const { return strip * panel * 2; }
  int64_t a_bytes() const { return parts_of(rows, kPairPanel) * panel * 2; }
  /// Stride of sums, such that rows do not share the L1 cache's sets.
  static constexpr int64_t kStride = kBlockColumns + 16;
  int64_t lane_bytes() const { return a_bytes() + rows * kStride * 4; }

  int64_t chunks, depth;  ///< of the terms: how many, and how many terms one has
  int64_t panel;          ///< elements of a panel
  int64_t lanes;
  int64_t rows = kMostRows;  ///< of a task
  int64_t strip = 0;         ///< panels of B at a time
  int64_t row_blocks = 0, column_parts = 0;
};

/// An operand as stored: its rows are rows of the panels, or terms.
struct StoredOperand {
  const bf16* at;
  int64_t stride;
  bool rows_are_terms;
  PairProductKernels::Pack* pack;
  int64_t count, terms;  ///< of rows or columns, and of what is summed

  /// Panels from `first` on, `panel` elements apart.
  void pack_panels(int64_t first, int64_t panels, int64_t panel, bf16* to) const {
    for (int64_t t = 0; rows_are_terms && t < terms; t += kPairPanel) {
      for (int64_t i = 0; i < panels; ++i)
        pack(at + t * stride + (first + i) * kPairPanel, stride, to + i * panel + t * kPairPanel,
             {0, std::min(kPairPanel, terms - t), kPairPanel});
    }
    for (int64_t i = 0; !rows_are_terms && i < panels; ++i) {
      const int64_t row = (first + i) * kPairPanel;
      pack(at + row * stride, stride, to + i * panel, {0, std::min(kPairPanel, count - row), terms});
    }
  }
};

class PairMatmul {
 public:
  PairMatmul(const GemmProblem& p, const void* a, const void* b, void* c, const float* scale, void* workspace)
      : p_(p),
        blocks_(p),
        kernels_(*pair_product_kernels()),
        a_{static_cast<const bf16*>(a),
           p.lda,
           p.a == Stored::transposed,
           p.a == Stored::transposed ? kernels_.summed : kernels_.rows,
           p.m,
           p.k},
        b_{static_cast<const bf16*>(b),
           p.ldb,
           p.b == Stored::plain,
           p.b == Stored::plain ? kernels_.pairs : kernels_.transposed,
           p.n,
           p.k},
        c_(static_cast<char*>(c)),
        scale_(scale ? *scale : 1.0f),
        packed_b_(static_cast<bf16*>(workspace)),
        lanes_(static_cast<char*>(workspace) + blocks_.strip_bytes()) {}

  void run() const {
    const int64_t all = parts_of(p_.n, kPairPanel);
    for (int64_t first = 0; first < all; first += blocks_.strip) {
      const int64_t panels = std::min(blocks_.strip, all - first);
      parallel_for_each(parts_of(panels, kGroup), [&](int64_t group) {
        const int64_t begin = group * kGroup;
        b_.pack_panels(first + begin, std::min(kGroup, panels - begin), blocks_.panel,
                       packed_b_ + begin * blocks_.panel);
      });
      parallel_for_each(blocks_.row_blocks * blocks_.column_parts, [&](int64_t task) {
        const int64_t part = task % blocks_.column_parts, parts = blocks_.column_parts;
        const int64_t begin = panels * part / parts, end = panels * (part + 1) / parts;
        if (begin < end) multiply_rows(task / parts * blocks_.rows, first, begin, end);
      });
    }
  }

 private:
  /// Rows from `row` on, with panels [begin, end) of the strip that begins at panel `strip`.
  void multiply_rows(int64_t row, int64_t strip, int64_t begin, int64_t end) const {
    const PairProductThread thread;
    char* own = lanes_ + (blocks_.lanes == 1 ? 0 : parallel_lane()) * blocks_.lane_bytes();
    bf16* packed_a = reinterpret_cast<bf16*>(own);
    float* sums = reinterpret_cast<float*>(own + blocks_.a_bytes());
    const int64_t rows = std::min(blocks_.rows, p_.m - row);
    a_.pack_panels(row / kPairPanel, parts_of(rows, kPairPanel), blocks_.panel, packed_a);
    PairProduct product{.a_row = kPairPanel,
                        .a_depth = kPairPanel * kPairPanel,
                        .a_panel = blocks_.panel,
                        .b_depth = b_.rows_are_terms ? 2 * kPairTileElements : kPairTileElements,
                        .b_block = b_.rows_are_terms ? kPairTileElements : 16 * whole_pair_panels(p_.k),
                        .b_panel = blocks_.panel,
                        .c = sums,
                        .c_row = PairBlocks::kStride,
                        .m = whole_pair_panels(rows)};
    for (int64_t panel = begin; panel < end; panel += kBlockColumns / kPairPanel) {
      const int64_t column = (strip + panel) * kPairPanel;
      const int64_t columns = std::min({kBlockColumns, (end - panel) * kPairPanel, p_.n - column});
      product.n = whole_pair_panels(columns);
      for (int64_t chunk = 0; chunk < blocks_.chunks; ++chunk) {
        const int64_t term = chunk * blocks_.depth;
        product.a = packed_a + term * kPairPanel;
        product.b = packed_b_ + panel * blocks_.panel + term * (b_.rows_are_terms ? kPairPanel : 16);
        product.k = whole_pair_panels(std::min(blocks_.depth, p_.k - term));
        product.accumulate = chunk > 0;
        kernels_.multiply(product);
      }
      kernels_.store[p_.output]({.from = sums,
                                 .from_stride = PairBlocks::kStride,
                                 .to = c_ + (row * p_.ldc + column) * size_of(p_.output),
                                 .to_stride = p_.ldc,
                                 .factor = scale_,
                                 .accumulate = p_.result == GemmProblem::Result::accumulate},
                                {0, rows, columns});
    }
  }

  const GemmProblem& p_;
  const PairBlocks blocks_;
  const PairProductKernels& kernels_;
  const StoredOperand a_, b_;
  char* c_;
  float scale_;
  bf16* packed_b_;
  char* lanes_;
};

}  // namespace

bool pairs_take(const GemmProblem& p) {
  if (p.input != DType::bf16 || !pair_product_kernels() || std::min({p.m, p.n, p.k}) < kFewest) return false;
  const auto fits = [&](Stored stored, Stored rows_are_terms, int64_t count) {
    return stored == rows_are_terms ? count % 32 == 0 : p.k % 16 == 0;
  };
  return fits(p.a, Stored::transposed, p.m) && fits(p.b, Stored::plain, p.n);
}

int64_t matmul_pairs_workspace_bytes(const GemmProblem& p) {
  const PairBlocks blocks(p);
  return blocks.strip_bytes() + blocks.lanes * blocks.lane_bytes();
}

void matmul_pairs(const GemmProblem& p, const void* a, const void* b, void* c, const float* scale,
                  void* workspace) {
  PairMatmul(p, a, b, c, scale, workspace).run();
}

}  // namespace ottava::cpu
