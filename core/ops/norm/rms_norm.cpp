#include "core/ops/norm/rms_norm.h"

#include "core/cost.h"
#include "core/cuda/row_groups.h"
#include "core/ops/check.h"
#include "core/ops/norm/rms_norm_kernels.h"
#include "core/ops/row_groups.h"

namespace ottava {
namespace {

constexpr std::string_view kForward = "rms_norm_forward", kBackward = "rms_norm_backward";

void check(const RmsNormForward& a) {
  check_float(kForward, "x", a.x);
  int64_t rows = a.x.rows(), cols = a.x.cols();
  check_like(kForward, "y", a.y, "x", a.x);
  check_tensor(kForward, "weight", a.weight, a.x.dtype, {cols});
  check_tensor(kForward, "rstd", a.rstd, DType::f32, {rows});
  if (a.residual.empty() != a.sum.empty()) {
    fail<ShapeError>(kForward, "residual and sum belong together: give both or neither");
  }
  if (!a.residual.empty()) {
    check_like(kForward, "residual", a.residual, "x", a.x);
    check_like(kForward, "sum", a.sum, "x", a.x);
  }
  if (!a.amax.empty()) check_tensor(kForward, "amax", a.amax, DType::u32, {1});
}

void forward_on_cpu(const RmsNormForward& a) {
  auto kernel = cpu::rms_norm_kernels().forward[a.x.dtype];
  parallel_for(a.x.rows(), 16, [&](int64_t begin, int64_t end) {
    uint32_t amax = kernel(a, {begin, end, a.x.cols()});
    if (!a.amax.empty()) raise_amax(a.amax, amax);
  });
}

void backward_on_cpu(const RmsNormBackward& a) {
  auto kernel = cpu::rms_norm_kernels().backward[a.x.dtype];
  const int64_t cols = a.x.cols();
  float* partials = a.workspace.as<float>();
  for_each_row_group(a.x.rows(), cols, partials, [&](float* partial, int64_t begin, int64_t end) {
    uint32_t amax = kernel(a, {begin, end, cols}, partial);
    if (!a.amax.empty()) raise_amax(a.amax, amax);
  });
  add_row_groups(partials, cols, a.dweight.as<float>(), cols);
}

}  // namespace

void check_rms_norm_backward(std::string_view op, const RmsNormBackward& a, const Shape& workspace) {
  check_float(op, "x", a.x);
  int64_t rows = a.x.rows(), cols = a.x.cols();
  check_like(op, "dy", a.dy, "x", a.x);
  check_like(op, "dx", a.dx, "x", a.x);
  if (!a.dresidual.empty()) check_like(op, "dresidual", a.dresidual, "x", a.x);
  check_tensor(op, "weight", a.weight, a.x.dtype, {cols});
  check_tensor(op, "rstd", a.rstd, DType::f32, {rows});
  check_tensor(op, "dweight", a.dweight, DType::f32, {cols});
  check_tensor(op, "workspace", a.workspace, DType::f32, workspace);
  if (!a.amax.empty()) check_tensor(op, "amax", a.amax, DType::u32, {1});
}

Shape rms_norm_workspace(const Stream& stream, int64_t channels) {
  bool on_gpu = stream.target().type == DeviceType::cuda;
  return {on_gpu ? cuda::kRowGroups : kRowGroups, channels};
}

void rms_norm_forward(Stream& stream, const RmsNormForward& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return forward_on_cpu(args);
    case DeviceType::cuda:
      return cuda::rms_norm_forward(stream, args);
    case DeviceType::meta: {
      double passes = args.residual.empty() ? 2 : 4;
      stream.recorder().record({.op = kForward, .bytes = passes * static_cast<double>(args.x.bytes())});
    }
  }
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& args) {
  check_rms_norm_backward(kBackward, args, rms_norm_workspace(stream, args.x.cols()));
  switch (stream.type()) {
    case DeviceType::cpu:
      return backward_on_cpu(args);
    case DeviceType::cuda:
      return cuda::rms_norm_backward(stream, args);
    case DeviceType::meta: {
      double passes = args.dresidual.empty() ? 3 : 4;
      stream.recorder().record({.op = kBackward, .bytes = passes * static_cast<double>(args.x.bytes())});
    }
  }
}

}  // namespace ottava
