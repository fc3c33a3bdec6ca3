#include "fp8/ops/rms_norm_quantize.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/ops/norm/rms_norm_kernels.h"
#include "fp8/ops/rows_on_cpu.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kOp = "rms_norm_quantize";

void check(const RmsNormQuantize& q) {
  const RmsNormForward& a = q.norm;
  check_float(kOp, "x", a.x);
  const int64_t rows = a.x.rows(), cols = a.x.cols();
  check_row_output(kOp, q.output, {rows, cols});
  check_tensor(kOp, "weight", a.weight, a.x.dtype, {cols});
  check_tensor(kOp, "rstd", a.rstd, DType::f32, {rows});
  if (a.residual.empty() != a.sum.empty()) {
    fail<ShapeError>(kOp, "residual and sum belong together: give both or neither");
  }
  if (!a.residual.empty()) {
    check_like(kOp, "residual", a.residual, "x", a.x);
    check_like(kOp, "sum", a.sum, "x", a.x);
  }
  if (!a.y.empty()) check_like(kOp, "y", a.y, "x", a.x);
  if (!a.amax.empty()) fail<ShapeError>(kOp, "amax is given: scales per row and block need no tensor's");
}

void on_cpu(const RmsNormQuantize& q) {
  auto kernel = cpu::rms_norm_kernels().forward[q.norm.x.dtype];
  const Shape matrix{q.norm.x.rows(), q.norm.x.cols()};
  cpu::for_each_quantized_row(q.output, q.norm.x, q.norm.y, [&](int64_t row, const Tensor& y) {
    RmsNormForward one = q.norm;
    for (Tensor* t : {&one.x, &one.residual, &one.sum}) {
      if (!t->empty()) *t = t->reshape(matrix).slice(row, row + 1);
    }
    one.rstd = one.rstd.slice(row, row + 1);
    one.y = y;
    kernel(one, {0, 1, matrix.cols()});
  });
}

}  // namespace

void rms_norm_quantize(Stream& stream, const RmsNormQuantize& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args);
    case DeviceType::cuda:
      return cuda::rms_norm_quantize(stream, args);
    case DeviceType::meta: {
      const double passes = (args.norm.residual.empty() ? 1 : 3) + (args.norm.y.empty() ? 0 : 1);
      stream.recorder().record(
          {.op = kOp, .bytes = passes * static_cast<double>(args.norm.x.bytes()) + bytes_of(args.output)});
    }
  }
}

}  // namespace ottava::fp8
