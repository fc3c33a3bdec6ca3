#include "core/float8/row_output.h"

#include "core/check.h"

namespace ottava::fp8 {

void check_row_output(std::string_view op, const RowOutput& output, DType made, Shape shape,
                      const Tensor& amax) {
  if (!amax.empty()) fail<ShapeError>(op, "amax is given: scales per row and block need no tensor's");
  const bool is_tensor = traits(output.granularity).has_one_scale();
  if (is_tensor) check_tensor(op, "float8.amax", output.amax, DType::u32, {1});
  if (!is_tensor && !traits(output.granularity).is_row_local) {
    fail<ShapeError>(
        op,
        "scales per {} are not made together with a result: expected row or 1x128, else quantize the result",
        name_of(output.granularity));
  }
  if (shape.cols() % 16 != 0) {
    fail<ShapeError>(op, "rows have {} elements, FP8 products take multiples of 16", shape.cols());
  }
  if (made != DType::bf16)
    fail<ShapeError>(op, "makes {}, expected bf16, else quantize the result", name_of(made));
  const DType format = output.out.codes.dtype;
  format_of(format);
  if (format == DType::e5m2 && !is_tensor) {
    fail<ShapeError>(op, "out.codes is e5m2 with scales per {}: expected e4m3, or scales per tensor",
                     name_of(output.granularity));
  }
  check_tensor(op, "out.codes", output.out.codes, format, shape);
  check_tensor(op, "out.scale_inverse", output.out.scale_inverse, DType::f32,
               scale_shape(output.granularity, shape.rows(), shape.cols()));
  check_optional(op, "counters", output.counters, DType::i64, {3});
  check_optional(op, "non_finite", output.non_finite, DType::u32, {1});
  check_optional(op, "largest", output.largest, DType::u32, {1});
}

}  // namespace ottava::fp8
