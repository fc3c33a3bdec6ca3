#include "core/cuda/blas_plans.h"
#include "core/ops/matmul/matmul_kernels.h"

// Ceiling: the tensor cores; the kernels are cuBLASLt's. A row-major product out = a b is, column-major,
// out^T = b^T a^T: the library's A is our b, its B our a, and a matrix that we use as it lies is to the
// library a transposed one.
namespace ottava::cuda {
namespace {

constexpr int64_t kLeastBand = 1024;  // rows that with thousands of columns still fill a GPU

BlasProblem problem_of(const Matmul& args) {
  using Operand = BlasProblem::Operand;
  const bool a_transposed = args.kind == MatmulKind::weight_gradient,
             b_transposed = args.kind == MatmulKind::forward;
  const MatrixRows a = a_of(args), out = out_of(args);
  return {.a = args.b.dtype,
          .b = args.a.dtype,
          .d = args.out.dtype,
          .a_layout = b_transposed ? Operand::transposed : Operand::plain,
          .b_layout = a_transposed ? Operand::transposed : Operand::plain,
          .result = args.accumulate ? BlasProblem::Result::accumulate : BlasProblem::Result::overwrite,
          .m = out.cols,
          .n = out.rows,
          .k = a_transposed ? a.rows : a.cols,
          .lda = args.b.cols(),
          .ldb = a.stride,
          .ldd = out.stride};
}

}  // namespace

void matmul(Stream& stream, const Matmul& args) {
  const BlasProblem whole = problem_of(args);
  const MatrixRows a_rows = a_of(args), out = out_of(args);
  if (args.result == MatmulResult::any)
    return stream.blas_plans().run(stream, whole, {.a = args.b.data, .b = a_rows.data, .d = out.data});
  for_each_band(whole.n, kLeastBand, [&](int64_t begin, int64_t end) {
    BlasProblem band = whole;
    band.m = whole.m - begin;
    band.n = end - begin;
    const int64_t a = begin * (whole.a_layout == BlasProblem::Operand::transposed ? whole.lda : 1),
                  b = begin * (whole.b_layout == BlasProblem::Operand::transposed ? 1 : whole.ldb);
    stream.blas_plans().run(stream, band,
                            {.a = args.b.at(a), .b = a_rows.at(b), .d = out.at(begin * (whole.ldd + 1))});
  });
  mirror(stream, args.out);
}

void set_matmul_workspace(Stream& stream, Tensor workspace) { stream.blas_plans().set_workspace(workspace); }

}  // namespace ottava::cuda
