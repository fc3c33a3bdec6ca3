#include <algorithm>

#include "core/ops/matmul/matmul_kernels.h"
#include "core/ops/matmul/thread_blocks.h"
#include "core/round_up.h"
#include "core/threads/parallel_for.h"

// A gradient of weights sums over tokens, of which there are many, while the result is small. Each thread
// owns a block of it, which stays in its core's L2 cache while all terms pass by, 256 at a time; it widens
// what it needs of them for itself, and what comes next is fetched meanwhile.
namespace ottava::cpu {
namespace {

// 224 rows are 16 groups of 14. Their A, 256 KiB, and a B of 256 columns, 256 KiB, stay in the L2 cache
// beside the sums; a panel of B comes from there once for all of these rows. 112 rows take 2% longer, 56 5%.
constexpr int64_t kGradientRows = 224, kGradientDepth = 256;

BlockShape block_of(const Matmul& args) {
  if (args.kind != MatmulKind::weight_gradient || args.out.dtype != DType::f32 ||
      args.result == MatmulResult::symmetric)
    return {};
  const MatrixRows out = out_of(args);
  return block_of_thread(out.rows, out.cols, parallel_threads(),
                         {.row_unit = 1, .column_unit = kPanelColumns, .row_cost = 2});
}

/// Memory of one thread: 256 terms of some rows of A, and of all of the block's columns of B.
struct GradientLane {
  GradientLane(const BlockShape& block, const MatmulKernels& kernels)
      : parts(pieces_of(block.rows, kGradientRows)),
        b(round_up(kernels.groups_bytes(pieces_of(block.rows, parts), kGradientDepth), 256)),
        bytes(b + block.columns * kGradientDepth * 4) {}
  int64_t parts;  ///< of the block's rows, which are multiplied one after the other
  int64_t b, bytes;
};

class WidenedGradient {
 public:
  WidenedGradient(Stream& stream, const Matmul& args)
      : args_(args),
        shape_(block_of(args)),
        kernels_(matmul_kernels()),
        lane_(shape_, kernels_),
        a_(a_of(args)),
        out_(out_of(args)),
        threads_(parallel_threads()),
        workspace_(static_cast<char*>(matmul_workspace(stream, threads_ * lane_.bytes))) {}

  void run() const {
    const int64_t across = pieces_of(out_.cols, shape_.columns);
    parallel_for_each(pieces_of(out_.rows, shape_.rows) * across, [&](int64_t task) {
      block(task / across * shape_.rows, task % across * shape_.columns);
    });
  }

 private:
  /// The block of the result that begins there.
  void block(int64_t row, int64_t column) const {
    char* own = workspace_ + (threads_ == 1 ? 0 : parallel_lane()) * lane_.bytes;
    float *a = reinterpret_cast<float*>(own), *b = reinterpret_cast<float*>(own + lane_.b);
    const int64_t rows = std::min(shape_.rows, out_.rows - row),
                  columns = std::min(shape_.columns, out_.cols - column), terms = a_.rows;
    const bf16 *from_a = static_cast<const bf16*>(a_.data) + row, *from_b = args_.b.as<bf16>() + column;
    const auto first_row = [&](int64_t part) { return rows * part / lane_.parts; };
    for (int64_t p = 0; p < terms; p += kGradientDepth) {
      const int64_t depth = std::min(kGradientDepth, terms - p), next = p + depth,
                    next_depth = std::min(kGradientDepth, terms - next);
      for (int64_t j = 0; j < columns; j += kPanelColumns)
        kernels_.pack(from_b + p * out_.cols + j, out_.cols, std::min(kPanelColumns, columns - j), depth,
                      b + j * depth);
      for (int64_t part = 0; part < lane_.parts; ++part) {
        const int64_t first = first_row(part), end = first_row(part + 1);
        kernels_.pack_groups(from_a + p * a_.stride + first, a_.stride, end - first, depth, a);
        const bool is_last = part + 1 == lane_.parts;
        // Each part fetches as much of the next B as the others.
        const int64_t share = next_depth * part / lane_.parts,
                      share_end = next_depth * (part + 1) / lane_.parts;
        kernels_.multiply_groups(
            {.a = a,
             .b = b,
             .b_panel = depth * kPanelColumns,
             .c = static_cast<float*>(out_.at(row + first, column)),
             .c_row = out_.stride,
             .m = end - first,
             .n = columns,
             .k = depth,
             .accumulate = args_.accumulate || p > 0,
             .ahead = {is_last ? ahead(from_a, a_.stride, next, next_depth, first_row(1))
                               : ahead(from_a + end, a_.stride, p, depth, first_row(part + 2) - end),
                       ahead(from_b, out_.cols, next + share, share_end - share, columns)}});
      }
    }
  }

  /// `terms` terms from p on, of `count` rows or columns.
  static MatrixAhead ahead(const bf16* from, int64_t stride, int64_t p, int64_t terms, int64_t count) {
    return {reinterpret_cast<const char*>(from + p * stride), stride * 2, terms, count * 2};
  }

  const Matmul& args_;
  const BlockShape shape_;
  const MatmulKernels& kernels_;
  const GradientLane lane_;
  const MatrixRows a_, out_;
  int64_t threads_;
  char* workspace_;
};

}  // namespace

bool widens_gradient_by_blocks(const Matmul& args) { return block_of(args).rows > 0; }

int64_t widened_gradient_workspace_bytes(const Matmul& args) {
  return parallel_threads() * GradientLane(block_of(args), matmul_kernels()).bytes;
}

void widened_gradient(Stream& stream, const Matmul& args) { WidenedGradient(stream, args).run(); }

}  // namespace ottava::cpu
