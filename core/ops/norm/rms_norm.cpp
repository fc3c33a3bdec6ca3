#include "core/ops/norm/rms_norm.h"

#include <optional>

#include "core/check.h"
#include "core/cuda/row_groups.h"
#include "core/float8/quantized_rows.h"
#include "core/ops/norm/rms_norm_kernels.h"
#include "core/ops/row_groups.h"
#include "core/raise_amax.h"
#include "core/run_op.h"

namespace ottava {
namespace {

void check(const RmsNormForward& a) {
  const std::string_view op = name_of(a);
  check_float(op, "x", a.x);
  int64_t rows = a.x.rows(), cols = a.x.cols();
  if (!a.float8.empty()) check_row_output(op, a.float8, a.x.dtype, {rows, cols}, a.amax);
  if (a.float8.empty() || !a.y.empty()) check_like(op, "y", a.y, "x", a.x);
  check_tensor(op, "weight", a.weight, a.x.dtype, {cols});
  check_tensor(op, "rstd", a.rstd, DType::f32, {rows});
  if (a.residual.empty() != a.sum.empty()) {
    fail<ShapeError>(op, "residual and sum belong together: give both or neither");
  }
  if (!a.residual.empty()) {
    check_like(op, "residual", a.residual, "x", a.x);
    check_like(op, "sum", a.sum, "x", a.x);
  }
  check_optional(op, "amax", a.amax, DType::u32, {1});
}

void check(const RmsNormBackward& a, const Shape& workspace) {
  const std::string_view op = name_of(a);
  check_float(op, "x", a.x);
  int64_t rows = a.x.rows(), cols = a.x.cols();
  if (!a.float8.empty()) check_row_output(op, a.float8, a.x.dtype, {rows, cols}, a.amax);
  check_like(op, "dy", a.dy, "x", a.x);
  check_like(op, "dx", a.dx, "x", a.x);
  if (!a.dresidual.empty()) check_like(op, "dresidual", a.dresidual, "x", a.x);
  check_tensor(op, "weight", a.weight, a.x.dtype, {cols});
  check_tensor(op, "rstd", a.rstd, DType::f32, {rows});
  check_tensor(op, "dweight", a.dweight, DType::f32, {cols});
  check_tensor(op, "workspace", a.workspace, DType::f32, workspace);
  check_optional(op, "amax", a.amax, DType::u32, {1});
}

void rms_norm_forward_on_cpu(const RmsNormForward& a) {
  auto kernel = cpu::rms_norm_kernels().forward[a.x.dtype];
  const Shape matrix{a.x.rows(), a.x.cols()};
  if (!a.float8.empty()) {
    return cpu::for_each_quantized_row(a.float8, a.x, a.y, [&](int64_t row, const Tensor& y) {
      RmsNormForward one = a;
      for (Tensor* t : {&one.x, &one.residual, &one.sum}) {
        if (!t->empty()) *t = t->reshape(matrix).slice(row, row + 1);
      }
      one.rstd = one.rstd.slice(row, row + 1);
      one.y = y;
      kernel(one, {0, 1, matrix.cols()});
    });
  }
  parallel_for(matrix.rows(), 16, [&](int64_t begin, int64_t end) {
    raise_amax(a.amax, kernel(a, {begin, end, matrix.cols()}));
  });
}

void rms_norm_backward_on_cpu(const RmsNormBackward& a) {
  auto kernel = cpu::rms_norm_kernels().backward[a.x.dtype];
  const int64_t cols = a.x.cols();
  std::optional<cpu::RowQuantizer> quantizer;
  if (!a.float8.empty()) quantizer.emplace(a.float8, a.dx, a.float8.out.codes.dtype);
  float* partials = a.workspace.as<float>();
  for_each_row_group(a.x.rows(), cols, partials, [&](float* partial, int64_t begin, int64_t end) {
    if (!quantizer) {
      return raise_amax(a.amax, kernel(a, {begin, end, cols}, partial));
    }
    fp8::QuantizeCounts counts;
    for (int64_t r = begin; r < end; ++r) {
      kernel(a, {r, r + 1, cols}, partial);
      quantizer->quantize_row(r, a.dx.at(r * cols), quantizer->counts_or_null(counts));
    }
    quantizer->add(counts);
  });
  add_row_groups(partials, cols, a.dweight.as<float>(), cols);
  if (quantizer) quantizer->count_elements();
}

}  // namespace

std::string_view name_of(const RmsNormForward& args) {
  return args.float8.empty() ? "rms_norm_forward" : "rms_norm_quantize";
}
std::string_view name_of(const RmsNormBackward& args) {
  return args.float8.empty() ? "rms_norm_backward" : "rms_norm_backward_quantize";
}

Shape rms_norm_workspace(const Stream& stream, int64_t channels) {
  bool on_gpu = stream.target().type == DeviceType::cuda;
  return {on_gpu ? cuda::kRowGroups : kRowGroups, channels};
}

void rms_norm_forward(Stream& stream, const RmsNormForward& args) {
  check(args);
  const int64_t passes = (args.residual.empty() ? 1 : 3) + (args.y.empty() ? 0 : 1);
  const int64_t bytes = passes * args.x.bytes() + args.float8.out.bytes();
  run_op(stream, moving(name_of(args), bytes), rms_norm_forward, rms_norm_forward_on_cpu,
         cuda::rms_norm_forward, args);
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& args) {
  check(args, rms_norm_workspace(stream, args.x.cols()));
  const int64_t bytes = (args.dresidual.empty() ? 3 : 4) * args.x.bytes() + args.float8.out.bytes();
  run_op(stream, moving(name_of(args), bytes), rms_norm_backward, rms_norm_backward_on_cpu,
         cuda::rms_norm_backward, args);
}

}  // namespace ottava
