#include "core/ops/swiglu.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/ops/swiglu_kernels.h"
#include "core/parallel_for.h"

namespace ottava {
namespace {

constexpr std::string_view kForward = "swiglu_forward", kBackward = "swiglu_backward";
constexpr int64_t kGrain = 8;  // rows per piece of work

/// [N, F] from gate_up [N, 2F].
Shape half_of(std::string_view op, const Tensor& gate_up) {
  check_float(op, "gate_up", gate_up);
  if (gate_up.shape.rank() != 2 || gate_up.cols() % 2 != 0) {
    fail<ShapeError>(op, "gate_up is {}, expected [N, 2F]: gate and up side by side", describe(gate_up));
  }
  return {gate_up.rows(), gate_up.cols() / 2};
}

void check(const SwigluForward& a) {
  Shape half = half_of(kForward, a.gate_up);
  check_tensor(kForward, "out", a.out, a.gate_up.dtype, half);
  if (!a.amax.empty()) check_tensor(kForward, "amax", a.amax, DType::u32, {1});
}

template <class Args, class Kernel>
void on_cpu(const Args& a, Kernel kernel) {
  parallel_for(a.gate_up.rows(), kGrain, [&](int64_t begin, int64_t end) {
    uint32_t amax = kernel(a, {begin, end, a.gate_up.cols() / 2});
    if (!a.amax.empty()) raise_amax(a.amax, amax);
  });
}

}  // namespace

void check_swiglu_backward(std::string_view op, const SwigluBackward& a) {
  Shape half = half_of(op, a.gate_up);
  check_tensor(op, "dout", a.dout, a.gate_up.dtype, half);
  check_like(op, "dgate_up", a.dgate_up, "gate_up", a.gate_up);
  if (!a.out.empty()) check_tensor(op, "out", a.out, a.gate_up.dtype, half);
  if (!a.amax.empty()) check_tensor(op, "amax", a.amax, DType::u32, {1});
}

void swiglu_forward(Stream& stream, const SwigluForward& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args, cpu::swiglu_kernels().forward[args.out.dtype]);
    case DeviceType::cuda:
      return cuda::swiglu_forward(stream, args);
    case DeviceType::meta:
      stream.recorder().record({.op = kForward, .bytes = 3 * static_cast<double>(args.out.bytes())});
  }
}

void swiglu_backward(Stream& stream, const SwigluBackward& args) {
  check_swiglu_backward(kBackward, args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args, cpu::swiglu_kernels().backward[args.dout.dtype]);
    case DeviceType::cuda:
      return cuda::swiglu_backward(stream, args);
    case DeviceType::meta: {
      double passes = args.out.empty() ? 5 : 6;
      stream.recorder().record({.op = kBackward, .bytes = passes * static_cast<double>(args.dout.bytes())});
    }
  }
}

}  // namespace ottava
