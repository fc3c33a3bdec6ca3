#include "core/cuda/blas_plans.h"
#include "core/ops/matmul/matmul_kernels.h"

// Ceiling: the tensor cores; the kernels are cuBLASLt's. A row-major product out = a b is, column-major,
// out^T = b^T a^T: the library's A is our b, its B our a, and a matrix that we use as it lies is to the
// library a transposed one.
namespace ottava::cuda {
namespace {

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
  stream.blas_plans().run(stream, problem_of(args),
                          {.a = args.b.data, .b = a_of(args).data, .d = out_of(args).data});
}

void set_matmul_workspace(Stream& stream, Tensor workspace) { stream.blas_plans().set_workspace(workspace); }

}  // namespace ottava::cuda
