#include "fp8/quantize.h"

#include "core/check.h"
#include "core/run_op.h"
#include "fp8/quantize_kernels.h"
#include "fp8/quantize_threads.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kQuantize = "quantize", kDequantize = "dequantize", kAmax = "amax",
                           kColumnAmax = "column_amax", kTranspose = "transpose_codes",
                           kBlockScales = "transpose_block_scales";

void check_quantized(std::string_view op, std::string_view name, const Float8Codes& q,
                     Granularity granularity, Shape shape) {
  format_of(q.codes.dtype);
  check_tensor(op, fmt::format("{}.codes", name), q.codes, q.codes.dtype, shape);
  check_tensor(op, fmt::format("{}.scale_inverse", name), q.scale_inverse, scale_dtype(granularity),
               scale_shape(granularity, shape.rows(), shape.cols()));
}

void check_matrix(std::string_view op, std::string_view name, const Tensor& x) {
  if (x.shape.rank() != 2) fail<ShapeError>(op, "{} is {}, expected a matrix", name, describe(x));
}

void check(const Quantize& a) {
  check_float(kQuantize, "x", a.x);
  check_matrix(kQuantize, "x", a.x);
  const auto [rows, cols] = std::pair(x_of(a).rows, x_of(a).cols);
  if (a.out.empty() && a.transposed.empty()) {
    fail<ShapeError>(kQuantize, "nothing to write: give out, transposed or both");
  }
  if (!a.out.empty()) check_quantized(kQuantize, "out", a.out, a.granularity, {rows, cols});
  if (!a.transposed.empty())
    check_quantized(kQuantize, "transposed", a.transposed, a.granularity, {cols, rows});
  if (!a.out.empty() && !a.transposed.empty() && a.out.codes.dtype != a.transposed.codes.dtype) {
    fail<ShapeError>(kQuantize, "transposed is {}, expected {} (like out)", name_of(a.transposed.codes.dtype),
                     name_of(a.out.codes.dtype));
  }
  if (traits(a.granularity).amax == AmaxSource::given) {
    check_tensor(kQuantize, "amax", a.amax, DType::u32, {1});
  } else if (!a.amax.empty()) {
    fail<ShapeError>(kQuantize, "amax is given, but granularity {} measures its own", name_of(a.granularity));
  }
  if (traits(a.granularity).needs_column_amax && !a.transposed.empty()) {
    check_tensor(kQuantize, "column_amax", a.column_amax, DType::u32, {cols});
  }
  if (scale_dtype(a.granularity) == DType::e8m0 && a.rounding != ScaleRounding::down_to_power_of_two) {
    fail<ShapeError>(kQuantize,
                     "granularity {} stores scales as e8m0, which holds only powers of two: set rounding",
                     name_of(a.granularity));
  }
  check_optional(kQuantize, "counters", a.counters, DType::i64, {3});
  check_optional(kQuantize, "non_finite", a.non_finite, DType::u32, {1});
  check_optional(kQuantize, "largest", a.largest, DType::u32, {1});
}

double bytes_of(const Float8Codes& q) { return q.bytes(); }

}  // namespace

void amax(Stream& stream, const Tensor& x, const Tensor& amax, ColumnRange columns) {
  check_float(kAmax, "x", x);
  const MatrixRows rows = rows_of(kAmax, x, columns);
  check_tensor(kAmax, "amax", amax, DType::u32, {1});
  run_op(
      stream, {.op = kAmax, .bytes = rows.bytes()}, fp8::amax, [&] { cpu::amax(rows, amax); },
      [&] { cuda::amax(stream, rows, amax); }, x, amax, columns);
}

void column_amax(Stream& stream, const Tensor& x, const Tensor& amax, ColumnRange columns) {
  check_float(kColumnAmax, "x", x);
  const MatrixRows rows = rows_of(kColumnAmax, x, columns);
  check_tensor(kColumnAmax, "amax", amax, DType::u32, {rows.cols});
  run_op(
      stream, {.op = kColumnAmax, .bytes = rows.bytes()}, column_amax, [&] { cpu::column_amax(rows, amax); },
      [&] { cuda::column_amax(stream, rows, amax); }, x, amax, columns);
}

void quantize(Stream& stream, const Quantize& args) {
  check(args);
  const bool twice =
      traits(args.granularity).needs_column_amax && !args.out.empty() && !args.transposed.empty();
  run_op(stream,
         {.op = kQuantize,
          .bytes = (twice ? 2.0 : 1.0) * x_of(args).bytes() + bytes_of(args.out) + bytes_of(args.transposed)},
         quantize, cpu::quantize, cuda::quantize, args);
}

void dequantize(Stream& stream, const Float8Codes& x, Granularity granularity, const Tensor& y) {
  check_float(kDequantize, "y", y);
  check_matrix(kDequantize, "y", y);
  check_quantized(kDequantize, "x", x, granularity, y.shape);
  run_op(stream, {.op = kDequantize, .bytes = bytes_of(x) + y.bytes()}, dequantize, cpu::dequantize,
         cuda::dequantize, x, granularity, y);
}

void transpose_codes(Stream& stream, const Tensor& from, const Tensor& to) {
  check_matrix(kTranspose, "from", from);
  if (size_of(from.dtype) != 1)
    fail<ShapeError>(kTranspose, "from is {}, expected codes of one byte", describe(from));
  check_tensor(kTranspose, "to", to, from.dtype, {from.cols(), from.rows()});
  run_op(stream, moving(kTranspose, 2 * from.bytes()), transpose_codes, cpu::transpose_codes,
         cuda::transpose_codes, from, to);
}

void transpose_block_scales(Stream& stream, const Tensor& from, Shape matrix, const Tensor& to) {
  const Shape shape = scale_shape(Granularity::block_128x128, matrix.rows(), matrix.cols());
  const Shape transposed = scale_shape(Granularity::block_128x128, matrix.cols(), matrix.rows());
  check_tensor(kBlockScales, "from", from, DType::f32, shape);
  check_tensor(kBlockScales, "to", to, DType::f32, transposed);
  const auto on_cpu = [&] {
    for (int64_t c = 0; c < transposed[0]; ++c) {
      for (int64_t r = 0; r < transposed[1]; ++r) {
        to.as<float>()[c * transposed[1] + r] = r < shape[0] ? from.as<float>()[r * shape[1] + c] : 0.0f;
      }
    }
  };
  run_op(stream, moving(kBlockScales, from.bytes() + to.bytes()), transpose_block_scales, on_cpu,
         cuda::transpose_block_scales, from, matrix, to);
}

}  // namespace ottava::fp8
