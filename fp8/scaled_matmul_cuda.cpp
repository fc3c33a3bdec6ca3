#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/contains.h"
#include "core/cuda/blas_plans.h"
#include "core/cuda/runtime.h"
#include "core/ops/elementwise.h"
#include "core/text/listed.h"
#include "fp8/recipe.h"
#include "fp8/scaled_matmul_kernels.h"

// Ceiling: the tensor cores, at twice bf16's rate; the kernels are cuBLASLt's. The row-major product out = a
// b^T is, column-major, out^T = b a^T: the library's A is our b, transposed, and its B our a. That is the one
// layout (TN) that it has for FP8 before sm_100.
namespace ottava::fp8::cuda {
namespace {

constexpr std::string_view kOp = "scaled_matmul";
using ottava::cuda::BlasProblem;

void check_gpu(const Stream& stream, Granularity a, Granularity b) {
  const Granularity finer = std::max(a, b);
  const int capability = ottava::cuda::compute_capability(stream.device().index);
  const std::vector<RecipeName> possible = recipes_of_compute_capability(capability);
  if (contains(possible, recipe_with(finer))) return;
  const std::string names = listed(possible, [](RecipeName name) { return name_of(name); });
  fail<DeviceError>(
      kOp, "GPU {} has compute capability {}.{}, which does not multiply with scales per {} (recipe {}): {}",
      stream.device().index, capability / 10, capability % 10, fp8::name_of(finer),
      name_of(recipe_with(finer)),
      names.empty() ? "it has no FP8; emulate"
                    : fmt::format("it has {}; choose one of these or emulate", names));
}

void check_aligned(std::string_view name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) return;
  fail<ShapeError>(kOp, "{} at {} is not aligned to 16 bytes, which tensor cores need", name, data);
}

/// By Granularity.
constexpr BlasProblem::Scale kScales[] = {BlasProblem::Scale::tensor, BlasProblem::Scale::outer,
                                          BlasProblem::Scale::block_1x128, BlasProblem::Scale::block_128x128,
                                          BlasProblem::Scale::block_1x32};
BlasProblem::Scale scale_of(Granularity granularity) { return kScales[static_cast<size_t>(granularity)]; }

}  // namespace

void scaled_matmul(Stream& stream, const ScaledProduct& args) {
  check_gpu(stream, args.a.granularity, args.b.granularity);
  ProductOperand a = args.a, b = args.b;
  check_aligned("a.codes", a.matrix.codes.data);
  check_aligned("b.codes", b.matrix.codes.data);
  check_aligned("a.scale_inverse", a.matrix.scale_inverse.data);
  check_aligned("b.scale_inverse", b.matrix.scale_inverse.data);
  const MatrixRows out = args.out_rows();
  check_aligned("out", out.data);
  // Scales per row of one operand require the same of the other.
  const bool in_blocks = traits(a.granularity).has_blocks();
  if (a.granularity != b.granularity && !in_blocks) {
    auto [coarse, fine] = traits(a.granularity).has_one_scale() ? std::tie(a, b) : std::tie(b, a);
    const Tensor repeated{args.workspace.data, DType::f32, {coarse.matrix.codes.rows()}};
    check_aligned("workspace", repeated.data);
    fill_with(stream, coarse.matrix.scale_inverse, repeated);
    coarse.matrix.scale_inverse = repeated;
    coarse.granularity = fine.granularity;
  }
  const Tensor &left = b.matrix.codes, &right = a.matrix.codes;
  const bool fast = !in_blocks &&  // blocks are promoted one by one as it is
                    (args.fast == FastAccumulation::all ||
                     (args.fast == FastAccumulation::forward && args.kind == MatmulKind::forward));
  const BlasProblem problem{
      .a = left.dtype,
      .b = right.dtype,
      .d = out.dtype,
      .a_layout = BlasProblem::Operand::transposed,
      .result = args.accumulate ? BlasProblem::Result::accumulate : BlasProblem::Result::overwrite,
      .a_scale = scale_of(b.granularity),
      .b_scale = scale_of(a.granularity),
      .sums = fast ? BlasProblem::Sums::fast : BlasProblem::Sums::promoted,
      .m = left.rows(),
      .n = right.rows(),
      .k = left.cols(),
      .lda = left.cols(),
      .ldb = right.cols(),
      .ldd = out.stride};
  ottava::cuda::BlasOperands operands{.a = left.data,
                                      .b = right.data,
                                      .d = out.data,
                                      .a_scale = b.matrix.scale_inverse.data,
                                      .b_scale = a.matrix.scale_inverse.data};
  const int64_t place = place_of_addend(args);
  if (place < 0) return stream.blas_plans().run(stream, problem, operands);
  if (stream.blas_plans().run_if_supported(stream, problem, operands)) return;
  const Tensor addend{static_cast<char*>(args.workspace.data) + place, args.out.dtype, args.out.shape};
  BlasProblem apart = problem;
  apart.result = BlasProblem::Result::overwrite;
  operands.d = addend.data;
  stream.blas_plans().run(stream, apart, operands);
  add(stream, args.out, addend, args.out);
}

}  // namespace ottava::fp8::cuda
