#include "fp8/scaled_matmul.h"

#include "core/check.h"
#include "core/round_up.h"
#include "core/run_op.h"
#include "fp8/scaled_matmul_emulated.h"
#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kOp = "scaled_matmul";
using Contraction = ProductOperand::Contraction;

struct Extents {
  int64_t m, n, k;
};
int64_t outer_of(const ProductOperand& o) {
  return o.contraction == Contraction::inner ? o.matrix.codes.rows() : o.matrix.codes.cols();
}
int64_t contraction_of(const ProductOperand& o) {
  return o.contraction == Contraction::inner ? o.matrix.codes.cols() : o.matrix.codes.rows();
}
Extents extents_of(const ScaledProduct& a) { return {outer_of(a.a), outer_of(a.b), contraction_of(a.a)}; }

/// The codes that a product reads: column-wise ones where it contracts rows, if they are there.
ProductOperand operand_of(const Float8Tensor& x, bool contracts_rows) {
  if (!contracts_rows) return {x.rowwise, x.granularity};
  if (!x.columnwise.empty()) return {x.columnwise, x.granularity};
  return {x.rowwise, x.granularity, Contraction::outer};
}
ScaledProduct product_of(const ScaledMatmul& args) {
  return {.kind = args.kind,
          .a = operand_of(args.a, args.kind == MatmulKind::weight_gradient),
          .b = operand_of(args.b, args.kind != MatmulKind::forward),
          .out = args.out,
          .out_columns = args.out_columns,
          .accumulate = args.accumulate,
          .emulate = args.emulate,
          .fast = args.fast,
          .workspace = args.workspace};
}

void check_operand(std::string_view name, const ProductOperand& o) {
  const Tensor& codes = o.matrix.codes;
  if (codes.shape.rank() != 2) fail<ShapeError>(kOp, "{} is {}, expected a matrix", name, describe(codes));
  format_of(codes.dtype);
  check_tensor(kOp, fmt::format("{}.scale_inverse", name), o.matrix.scale_inverse, scale_dtype(o.granularity),
               scale_shape(o.granularity, codes.rows(), codes.cols()));
  if (o.contraction == Contraction::outer && !traits(o.granularity).is_transpose_invariant) {
    fail<ShapeError>(
        kOp,
        "{} has its contraction outside, where its {} scales do not run along it: quantize the transpose",
        name, fp8::name_of(o.granularity));
  }
}

void check_multiple(std::string_view what, int64_t extent, int64_t of) {
  if (extent % of == 0 && extent > 0) return;
  fail<ShapeError>(kOp, "{} is {}, not a multiple of {}: {}/{} = {}; run this product in bf16 or pad it",
                   what, extent, of, extent, of, static_cast<double>(extent) / of);
}

void check(const ScaledProduct& args) {
  check_operand("a", args.a);
  check_operand("b", args.b);
  if (args.a.matrix.codes.dtype == DType::e5m2 && args.b.matrix.codes.dtype == DType::e5m2) {
    fail<ShapeError>(kOp, "a and b are both e5m2: at most one operand may be");
  }
  if (!(traits(args.a.granularity).pairs & bit(args.b.granularity))) {
    fail<ShapeError>(kOp, "scales per {} of a and per {} of b do not go together",
                     fp8::name_of(args.a.granularity), fp8::name_of(args.b.granularity));
  }
  if (args.a.contraction == Contraction::outer && args.b.contraction == Contraction::inner) {
    fail<ShapeError>(
        kOp, "a has its contraction outside and b inside: no layer needs that, transpose one of them");
  }
  const Extents e = extents_of(args);
  if (contraction_of(args.b) != e.k) {
    fail<ShapeError>(kOp, "contractions differ: a {}, b {} ({} vs {})", to_string(args.a.matrix.codes.shape),
                     to_string(args.b.matrix.codes.shape), e.k, contraction_of(args.b));
  }
  check_multiple("outer extent of a", e.m, 16);
  check_multiple("outer extent of b", e.n, 16);
  check_multiple("the contraction", e.k, traits(args.a.granularity).alignment);
  check_float(kOp, "out", args.out);
  const MatrixRows out = args.out_rows();
  if (args.out_columns.is_all()) check_tensor(kOp, "out", args.out, args.out.dtype, {e.m, e.n});
  if (out.shape() != Shape{e.m, e.n}) {
    fail<ShapeError>(kOp, "columns [{}, {}) of out {} are not [{}, {}], the result", args.out_columns.begin,
                     args.out_columns.end, describe(args.out), e.m, e.n);
  }
  if (args.accumulate && args.out.dtype != DType::f32) {
    fail<ShapeError>(kOp, "out is {}, accumulating needs f32", describe(args.out));
  }
}

bool is_native(const Stream& stream, const ScaledProduct& args) {
  return stream.target().is_gpu() && !args.emulate;
}
/// And, for plain FP8 on a GPU, what all tensor cores refuse.
void check(const Stream& stream, const ScaledProduct& args) {
  check(args);
  if (!is_native(stream, args)) return;
  for (const ProductOperand* o : {&args.a, &args.b}) {
    if (o->contraction == Contraction::inner) continue;
    fail<ShapeError>(kOp,
                     "{} has its contraction outside, and a GPU multiplies FP8 only with both inside: "
                     "transpose its codes, or emulate",
                     o == &args.a ? "a" : "b");
  }
}

/// Tensor cores take scales per row of both operands or of neither, so a tensor's scale is repeated to match
/// the other's.
int64_t repeated_scale_bytes(const ScaledProduct& args) {
  if (args.a.granularity == args.b.granularity) return 0;
  if (traits(args.a.granularity).has_blocks()) return 0;
  return outer_of(args.a.matrix.scale_inverse.numel() == 1 ? args.a : args.b) * 4;
}

int64_t native_workspace_bytes(const ScaledProduct& args) {
  const int64_t place = place_of_addend(args);
  return place < 0 ? repeated_scale_bytes(args) : place + args.out.bytes();
}

}  // namespace

int64_t place_of_addend(const ScaledProduct& args) {
  if (!args.accumulate || !args.out_columns.is_all() ||
      (traits(args.a.granularity).has_one_scale() && traits(args.b.granularity).has_one_scale()))
    return -1;
  return round_up(repeated_scale_bytes(args), 64);
}

void scaled_matmul(Stream& stream, const ScaledMatmul& given) {
  const ScaledProduct args = product_of(given);
  check(stream, args);
  if (stream.is_meta()) {
    stream.recorder().need_workspace(scaled_matmul_inner_workspace_bytes(stream, given));
  } else {
    const int64_t need = scaled_matmul_workspace_bytes(stream, given);
    if (need > 0 && (args.workspace.dtype != DType::u8 || args.workspace.bytes() < need)) {
      fail<MemoryError>(kOp, "workspace is {}, expected u8 [{}]: scaled_matmul_workspace_bytes tells",
                        describe(args.workspace), need);
    }
  }
  const bool is_emulated_on_gpu = stream.target().is_gpu() && args.emulate;
  const Extents e = extents_of(args);
  run_op(
      stream,
      {.op = kOp,
       .precision = is_emulated_on_gpu ? Precision::bf16 : Precision::fp8,
       .flops = 2.0 * e.m * e.n * e.k,
       .bytes = args.out_rows().bytes() * (args.accumulate ? 2 : 1) +
                static_cast<double>(args.a.matrix.bytes() + args.b.matrix.bytes()),
       .variant = name_of(args.kind)},
      scaled_matmul, [&] { scaled_matmul_emulated(stream, args); },
      [&] { args.emulate ? scaled_matmul_emulated(stream, args) : cuda::scaled_matmul(stream, args); },
      given);
}

int64_t scaled_matmul_workspace_bytes(Stream& stream, const ScaledMatmul& given) {
  const ScaledProduct args = product_of(given);
  check(stream, args);
  return is_native(stream, args) ? native_workspace_bytes(args) : emulated_workspace_bytes(stream, args);
}

int64_t scaled_matmul_inner_workspace_bytes(Stream& stream, const ScaledMatmul& given) {
  const ScaledProduct args = product_of(given);
  check(stream, args);
  return matmul_workspace_bytes(stream, emulated_product(stream, args));
}

}  // namespace ottava::fp8
