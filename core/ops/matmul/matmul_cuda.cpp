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
  return {.a = args.b.dtype,
          .b = args.a.dtype,
          .d = args.out.dtype,
          .a_layout = b_transposed ? Operand::transposed : Operand::plain,
          .b_layout = a_transposed ? Operand::transposed : Operand::plain,
          .result = args.accumulate ? BlasProblem::Result::accumulate : BlasProblem::Result::overwrite,
          .m = args.out.cols(),
          .n = args.out.rows(),
          .k = a_transposed ? args.a.rows() : args.a.cols(),
          .lda = args.b.cols(),
          .ldb = args.a.cols(),
          .ldd = args.out.cols()};
}

}  // namespace

void matmul(Stream& stream, const Matmul& args) {
  stream.blas_plans().run(stream, problem_of(args), {.a = args.b.data, .b = args.a.data, .d = args.out.data});
}

void set_matmul_workspace(Stream& stream, Tensor workspace) { stream.blas_plans().set_workspace(workspace); }

}  // namespace ottava::cuda
