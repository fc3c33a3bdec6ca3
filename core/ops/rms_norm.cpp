#include "core/ops/rms_norm.h"

#include <algorithm>

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/ops/rms_norm_kernels.h"
#include "core/parallel_for.h"

namespace ottava {
namespace {

// Groups of rows whose dweight sums are made apart: enough for 32 threads, few enough that adding them is cheap.
constexpr int64_t kGroups = 32;
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

void check(const RmsNormBackward& a, Shape workspace) {
  check_float(kBackward, "x", a.x);
  int64_t rows = a.x.rows(), cols = a.x.cols();
  check_like(kBackward, "dy", a.dy, "x", a.x);
  check_like(kBackward, "dx", a.dx, "x", a.x);
  if (!a.dresidual.empty()) check_like(kBackward, "dresidual", a.dresidual, "x", a.x);
  check_tensor(kBackward, "weight", a.weight, a.x.dtype, {cols});
  check_tensor(kBackward, "rstd", a.rstd, DType::f32, {rows});
  check_tensor(kBackward, "dweight", a.dweight, DType::f32, {cols});
  check_tensor(kBackward, "workspace", a.workspace, DType::f32, workspace);
  if (!a.amax.empty()) check_tensor(kBackward, "amax", a.amax, DType::u32, {1});
}

void forward_on_cpu(const RmsNormForward& a) {
  const auto& kernels = cpu::rms_norm_kernels();
  auto kernel = a.x.dtype == DType::f32 ? kernels.forward_f32 : kernels.forward_bf16;
  parallel_for(a.x.rows(), 16, [&](int64_t begin, int64_t end) {
    uint32_t amax = kernel(a, begin, end);
    if (!a.amax.empty()) raise_amax(a.amax, amax);
  });
}

void backward_on_cpu(const RmsNormBackward& a) {
  const auto& kernels = cpu::rms_norm_kernels();
  auto kernel = a.x.dtype == DType::f32 ? kernels.backward_f32 : kernels.backward_bf16;
  int64_t rows = a.x.rows(), cols = a.x.cols();
  float* partials = a.workspace.as<float>();
  parallel_for(kGroups, 1, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      float* partial = partials + g * cols;
      std::fill(partial, partial + cols, 0.0f);
      uint32_t amax = kernel(a, rows * g / kGroups, rows * (g + 1) / kGroups, partial);
      if (!a.amax.empty()) raise_amax(a.amax, amax);
    }
  });
  float* dweight = a.dweight.as<float>();
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t c = 0; c < cols; ++c) dweight[c] += partials[g * cols + c];
  }
}

}  // namespace

Shape rms_norm_workspace(const Stream&, int64_t channels) { return {kGroups, channels}; }

void rms_norm_forward(Stream& stream, const RmsNormForward& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu: return forward_on_cpu(args);
    case DeviceType::cuda: return cuda::rms_norm_forward(stream, args);
    case DeviceType::meta: {
      double passes = args.residual.empty() ? 2 : 4;
      stream.recorder().record({.op = kForward, .bytes = passes * static_cast<double>(args.x.bytes())});
    }
  }
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& args) {
  check(args, rms_norm_workspace(stream, args.x.cols()));
  switch (stream.type()) {
    case DeviceType::cpu: return backward_on_cpu(args);
    case DeviceType::cuda: return cuda::rms_norm_backward(stream, args);
    case DeviceType::meta: {
      double passes = args.dresidual.empty() ? 3 : 4;
      stream.recorder().record({.op = kBackward, .bytes = passes * static_cast<double>(args.x.bytes())});
    }
  }
}

}  // namespace ottava
