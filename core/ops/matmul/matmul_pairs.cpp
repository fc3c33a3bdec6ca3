#include "core/ops/matmul/matmul_pairs.h"

#include <algorithm>
#include <utility>

#include "core/cpu/pair_product.h"
#include "core/ops/matmul/thread_blocks.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"

// B is packed into panels of 32 columns that all threads share. A task takes a block of rows, packs its part
// of A into memory of its own, which stays in the core's L2 cache, and makes one block of columns after
// another. Where there are more terms than that cache has room for, as for gradients of weights, A is packed
// chunk by chunk; and where a thread's part of the result fits in its cache, so is B, by each thread for
// itself. Where results are written from registers, sums are kept there over all terms or 2048 of them; of
// two such chunks one panel of B after the other is taken, so that but a few sums wait in between.
namespace ottava::cpu {
namespace {

using Stored = GemmProblem::Stored;

// 256 terms of a panel are 16 KiB: B's stays in the L1 cache while A's come from the L2 cache, where those of
// 256 rows take 128 KiB and the sums of a block 512 KiB, or 1 MiB where A is packed chunk by chunk.
constexpr int64_t kChunkTerms = 256, kMostRows = 256;
constexpr int64_t kBlockColumns = 512, kWideBlockColumns = 1024;
// Of a task's A, up to which it is packed as a whole: stored by rows, and by terms.
constexpr int64_t kRowsBytes = int64_t{2} << 20, kTermsBytes = int64_t{1} << 20;
// Where results are written from registers: 2048 terms of 128 rows, or 4096 of 64, take half of an L2 cache
// of 1 MiB. B's panels come from there too, two lines in 16 cycles, and are fetched meanwhile, for which 32
// rows take too short a time. Where rows are terms, 64 of their columns are packed in less time than 128.
constexpr int64_t kRegisterTerms = 2048, kRegisterChunks = 2, kRegisterRows = 128, kFewRegisterRows = 64,
                  kMostRegisterColumns = 2048;
constexpr int64_t kStripBytes = int64_t{32} << 20;  ///< of packed B at a time
// Panels of B that are packed together: two where lines are fetched before they are written, as of more
// panels, hundreds of KiB apart, fewer stay in a cache.
constexpr int64_t kGroup = 8, kTermsGroup = 32, kRegisterTermsGroup = 2;
constexpr int64_t kFewest = 64;  ///< rows, columns and terms: below it packing costs too much

/// Rows of a task, such that the thread with the most of them has as few as can be: `largest`, or down to
/// half of that.
int64_t even_rows(int64_t largest, int64_t m, int64_t lanes) {
  int64_t best = largest;
  const auto most = [&](int64_t rows) { return pieces_of(pieces_of(m, rows), lanes) * rows; };
  for (int64_t rows = largest; rows >= largest / 2; rows -= kPairPanel) {
    if (most(rows) < most(best)) best = rows;
  }
  return best;
}

/// One block for each thread; none if A or B is not stored by terms.
BlockShape summed_block(const GemmProblem& p, int64_t lanes) {
  if (p.a != Stored::transposed || p.b != Stored::plain) return {};
  return block_of_thread(p.m, p.n, lanes, {.row_unit = kPairPanel, .column_unit = kPairPanel});
}

struct PairBlocks {
  explicit PairBlocks(const GemmProblem& p)
      : from_registers(pair_product_kernels()->writes_from_registers),
        chunks(pieces_of(p.k, from_registers ? kRegisterTerms : kChunkTerms)),
        depth(whole_pair_panels(pieces_of(p.k, chunks))),
        panel(chunks * depth * kPairPanel),
        lanes(parallel_threads()) {
    const int64_t panels = pieces_of(p.n, kPairPanel);
    if (from_registers) {
      a_by_chunk = chunks > kRegisterChunks;
      columns = whole_pair_panels(a_by_chunk ? std::min(p.n, kMostRegisterColumns) : chunks > 1 ? 1 : p.n);
      rows = chunks == 1 && p.a == Stored::plain ? even_rows(kRegisterRows, p.m, lanes) : kFewRegisterRows;
    } else if (const BlockShape block = summed_block(p, lanes); block.rows > 0) {
      a_by_chunk = b_by_chunk = true;
      rows = block.rows;
      columns = block.columns;
      strip = panels;
      row_blocks = pieces_of(p.m, rows);
      column_parts = pieces_of(p.n, columns);
      return;
    } else {
      a_by_chunk = kMostRows * chunks * depth * 2 > (p.a == Stored::transposed ? kTermsBytes : kRowsBytes);
      columns = a_by_chunk ? kWideBlockColumns : kBlockColumns;
      rows = a_by_chunk ? even_rows(kMostRows, p.m, lanes) : kMostRows;
    }
    while (rows > kPairPanel && rows >= 2 * p.m) rows /= 2;
    strip = std::min(panels, std::max(kStripBytes / (2 * panel), kGroup));
    row_blocks = pieces_of(p.m, rows);
    // A few tasks per thread, so that none waits long for the last; but A by chunks is packed anew for each.
    const int64_t tasks = a_by_chunk ? lanes : 2 * lanes,
                  part = from_registers ? pieces_of(std::min(p.n, kBlockColumns), kPairPanel)
                                        : columns / kPairPanel;
    column_parts = lanes == 1 ? 1 : std::min(pieces_of(tasks, row_blocks), pieces_of(strip, part));
  }
  int64_t chunk_panel() const { return depth * kPairPanel; }
  int64_t a_panel() const { return a_by_chunk ? chunk_panel() : panel; }
  int64_t b_panel() const { return b_by_chunk ? chunk_panel() : panel; }
  /// Stride of sums, such that rows do not share the L1 cache's sets.
  int64_t stride() const { return columns + 16; }
  int64_t strip_bytes() const { return b_by_chunk ? 0 : strip * panel * 2; }
  int64_t a_bytes() const { return pieces_of(rows, kPairPanel) * a_panel() * 2; }
  int64_t b_bytes() const { return b_by_chunk ? columns / kPairPanel * b_panel() * 2 : 0; }
  int64_t sums_bytes() const { return from_registers && chunks == 1 ? 0 : rows * stride() * 4; }
  int64_t lane_bytes() const { return a_bytes() + b_bytes() + sums_bytes(); }

  bool from_registers;  ///< results are written

  int64_t chunks, depth;  ///< of the terms: how many, and how many terms one has
  int64_t panel;          ///< elements of a panel
  int64_t lanes;
  bool a_by_chunk = false, b_by_chunk = false;  ///< else A is packed once for each task, B once for all
  int64_t rows = 0;                             ///< of a task
  int64_t columns = 0;                          ///< of a block
  int64_t strip = 0;                            ///< panels of B at a time
  int64_t row_blocks = 0, column_parts = 0;
};

/// An operand as stored: its rows are rows of the panels, or terms.
struct StoredOperand {
  const bf16* at;
  int64_t stride;
  bool rows_are_terms;
  PairProductKernels::Pack* pack;
  int64_t count;          ///< of rows or columns
  int64_t terms_fetched;  ///< while those before are packed; none if another fetches them
  bool far = false;       ///< packed into memory, of which lines are fetched before they are written

  /// Terms [begin, end) of panels from `first` on, `panel` elements apart.
  void pack_panels(int64_t first, int64_t panels, int64_t begin, int64_t end, int64_t panel, bf16* to) const {
    for (int64_t t = begin; rows_are_terms && t < end; t += kPairPanel) {
      for (int64_t next = t + kPairPanel; next < std::min(t + 2 * kPairPanel, terms_fetched); ++next) {
        for (int64_t i = 0; i < panels; ++i)
          __builtin_prefetch(at + next * stride + (first + i) * kPairPanel, 0, 2);
      }
      for (int64_t i = 0; i < panels; ++i) {
        bf16* target = to + i * panel + (t - begin) * kPairPanel;
        for (int64_t next = kPairPanel; far && next < 2 * kPairPanel; ++next)
          __builtin_prefetch(target + next * kPairPanel, 1, 2);
        pack(at + t * stride + (first + i) * kPairPanel, stride, target,
             {0, std::min(kPairPanel, end - t), std::min(kPairPanel, count - (first + i) * kPairPanel)});
      }
    }
    for (int64_t i = 0; !rows_are_terms && i < panels; ++i) {
      const int64_t row = (first + i) * kPairPanel;
      pack(at + row * stride + begin, stride, to + i * panel,
           {0, std::min(kPairPanel, count - row), end - begin});
    }
  }
  /// Rows or columns with the zeros that are packed with them.
  int64_t padded(int64_t number) const { return rows_are_terms ? number : whole_pair_panels(number); }
  /// Where terms [begin, end) of rows or columns [first, last) are.
  MatrixAhead lines(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    if (rows_are_terms) std::swap(first, begin), std::swap(last, end);
    return {reinterpret_cast<const char*>(at + first * stride + begin), stride * 2, last - first,
            (end - begin) * 2};
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
           blocks_.from_registers ? p.k : 0},
        b_{static_cast<const bf16*>(b),
           p.ldb,
           p.b == Stored::plain,
           p.b == Stored::plain ? kernels_.pairs : kernels_.transposed,
           p.n,
           blocks_.from_registers ? p.k : 0,
           blocks_.from_registers},
        c_(static_cast<char*>(c)),
        scale_(scale ? *scale : 1.0f),
        packed_b_(static_cast<bf16*>(workspace)),
        lanes_(static_cast<char*>(workspace) + blocks_.strip_bytes()) {}

  void run() const {
    const int64_t all = pieces_of(p_.n, kPairPanel);
    for (int64_t first = 0; first < all; first += blocks_.strip) {
      const int64_t panels = std::min(blocks_.strip, all - first), parts = blocks_.column_parts;
      if (!blocks_.b_by_chunk) pack_strip(first, panels);
      parallel_for_each(blocks_.row_blocks * parts, [&](int64_t task) {
        const int64_t part = task % parts;
        const int64_t begin = panels * part / parts, end = panels * (part + 1) / parts;
        if (begin < end) multiply_rows(task / parts * blocks_.rows, first, begin, end);
      });
    }
  }

 private:
  /// Panels [first, first + panels) of B. Rows that are terms are read a chunk at a time, as far as they go.
  void pack_strip(int64_t first, int64_t panels) const {
    const int64_t group = !b_.rows_are_terms       ? kGroup
                          : blocks_.from_registers ? kRegisterTermsGroup
                                                   : kTermsGroup,
                  chunks = b_.rows_are_terms ? blocks_.chunks : 1;
    parallel_for_each(pieces_of(panels, group) * chunks, [&](int64_t task) {
      const int64_t begin = task / chunks * group, term = task % chunks * blocks_.depth,
                    last = chunks == 1 ? p_.k : std::min(term + blocks_.depth, p_.k);
      b_.pack_panels(first + begin, std::min(group, panels - begin), term, last, blocks_.panel,
                     packed_b_ + begin * blocks_.panel + term * kPairPanel);
    });
  }

  /// Rows from `row` on, with panels [begin, end) of the strip that begins at panel `strip`.
  void multiply_rows(int64_t row, int64_t strip, int64_t begin, int64_t end) const {
    const PairProductThread thread;
    char* own = lanes_ + (blocks_.lanes == 1 ? 0 : parallel_lane()) * blocks_.lane_bytes();
    bf16* packed_a = reinterpret_cast<bf16*>(own);
    bf16* own_b = reinterpret_cast<bf16*>(own + blocks_.a_bytes());
    float* sums = reinterpret_cast<float*>(own + blocks_.a_bytes() + blocks_.b_bytes());
    const int64_t rows = std::min(blocks_.rows, p_.m - row);
    const auto pack_a = [&](int64_t term, int64_t last) {
      a_.pack_panels(row / kPairPanel, pieces_of(rows, kPairPanel), term, last, blocks_.a_panel(), packed_a);
    };
    if (!blocks_.a_by_chunk) pack_a(0, p_.k);
    PairProduct product{.a_row = kPairPanel,
                        .a_depth = kPairPanel * kPairPanel,
                        .a_panel = blocks_.a_panel(),
                        .b_depth = b_.rows_are_terms ? 2 * kPairTileElements : kPairTileElements,
                        .b_block = b_.rows_are_terms ? kPairTileElements : 16 * whole_pair_panels(p_.k),
                        .b_panel = blocks_.b_panel(),
                        .c = sums,
                        .c_row = blocks_.stride(),
                        .m = a_.padded(rows)};
    const auto shared_b = [&](int64_t panel, int64_t chunk) {
      return packed_b_ + panel * blocks_.panel +
             chunk * blocks_.depth * (b_.rows_are_terms ? kPairPanel : kPairPanel / 2);
    };
    const int64_t step = blocks_.columns / kPairPanel;
    for (int64_t panel = begin; panel < end; panel += step) {
      const int64_t column = (strip + panel) * kPairPanel;
      const int64_t columns = std::min({blocks_.columns, (end - panel) * kPairPanel, p_.n - column});
      product.n = b_.padded(columns);
      const PairProductKernels::Result result{.to = c_ + (row * p_.ldc + column) * size_of(p_.output),
                                              .stride = p_.ldc,
                                              .factor = scale_,
                                              .accumulate = p_.result == GemmProblem::Result::accumulate};
      for (int64_t chunk = 0; chunk < blocks_.chunks; ++chunk) {
        const int64_t term = chunk * blocks_.depth, last = std::min(term + blocks_.depth, p_.k),
                      next = std::min(last + blocks_.depth, p_.k);
        product.a = packed_a;
        if (blocks_.a_by_chunk) {
          pack_a(term, last);
          if (!a_.rows_are_terms || a_.terms_fetched == 0)
            product.ahead[0] = a_.lines(row, row + rows, last, next);
        } else {
          product.a += term * kPairPanel;
        }
        if (blocks_.b_by_chunk) {
          b_.pack_panels(column / kPairPanel, pieces_of(columns, kPairPanel), term, last, blocks_.b_panel(),
                         own_b);
          product.b = own_b;
          product.ahead[1] = b_.lines(column, column + columns, last, next);
        } else {
          product.b = shared_b(panel, chunk);
          // After the last comes the next task, which mostly begins where this one did.
          product.b_after = chunk + 1 < blocks_.chunks
                                ? shared_b(panel, chunk + 1)
                                : shared_b(panel + step < end ? panel + step : begin, 0);
        }
        product.k = whole_pair_panels(last - term);
        product.accumulate = chunk > 0;
        kernels_.multiply_to[p_.output](product, chunk + 1 < blocks_.chunks ? nullptr : &result,
                                        {0, rows, columns});
      }
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
  const bool a_by_terms = p.a == Stored::transposed, b_by_terms = p.b == Stored::plain;
  // A last half panel of A needs whole ones of B, and the other way round; what is stored by rows has whole
  // ones.
  const bool one_is_whole = (!a_by_terms || p.m % 32 == 0) || (!b_by_terms || p.n % 32 == 0);
  return one_is_whole && (a_by_terms ? p.m : p.k) % 16 == 0 && (b_by_terms ? p.n : p.k) % 16 == 0;
}

bool pairs_sum_in_cache(const GemmProblem& p) { return summed_block(p, parallel_threads()).rows > 0; }

int64_t matmul_pairs_workspace_bytes(const GemmProblem& p) {
  const PairBlocks blocks(p);
  return blocks.strip_bytes() + blocks.lanes * blocks.lane_bytes();
}

void matmul_pairs(const GemmProblem& p, const void* a, const void* b, void* c, const float* scale,
                  void* workspace) {
  PairMatmul(p, a, b, c, scale, workspace).run();
}

}  // namespace ottava::cpu
