#include "core/ops/swiglu.h"

#include "core/check.h"
#include "core/float8/quantized_rows.h"
#include "core/ops/swiglu_kernels.h"
#include "core/raise_amax.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

constexpr int64_t kRowsAtOnce = 8;  // rows per piece of work

/// [N, F] from gate_up [N, 2F].
Shape half_of(std::string_view op, const Tensor& gate_up) {
  check_float(op, "gate_up", gate_up);
  if (gate_up.shape.rank() != 2 || gate_up.cols() % 2 != 0) {
    fail<ShapeError>(op, "gate_up is {}, expected [N, 2F]: gate and up side by side", describe(gate_up));
  }
  return {gate_up.rows(), gate_up.cols() / 2};
}

void check(const SwigluForward& a) {
  const std::string_view op = name_of(a);
  Shape half = half_of(op, a.gate_up);
  if (!a.float8.empty()) check_row_output(op, a.float8, a.gate_up.dtype, half, a.amax);
  if (a.float8.empty() || !a.out.empty()) check_tensor(op, "out", a.out, a.gate_up.dtype, half);
  check_optional(op, "amax", a.amax, DType::u32, {1});
}

void check(const SwigluBackward& a) {
  const std::string_view op = name_of(a);
  Shape half = half_of(op, a.gate_up);
  check_tensor(op, "dout", a.dout, a.gate_up.dtype, half);
  check_like(op, "dgate_up", a.dgate_up, "gate_up", a.gate_up);
  if (!a.float8.empty()) check_row_output(op, a.float8, a.gate_up.dtype, a.dgate_up.shape, a.amax);
  check_optional(op, "out", a.out, a.gate_up.dtype, half);
  check_optional(op, "amax", a.amax, DType::u32, {1});
}

template <class Args, class Kernel>
void on_cpu(const Args& a, Kernel kernel) {
  parallel_for(a.gate_up.rows(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    raise_amax(a.amax, kernel(a, {begin, end, a.gate_up.cols() / 2}));
  });
}

void swiglu_forward_on_cpu(const SwigluForward& a) {
  auto kernel = cpu::swiglu_kernels().forward[a.gate_up.dtype];
  if (a.float8.empty()) return on_cpu(a, kernel);
  const Tensor x{nullptr, a.gate_up.dtype, a.float8.out.codes.shape};
  cpu::for_each_quantized_row(a.float8, x, a.out, [&](int64_t row, const Tensor& out) {
    SwigluForward one = a;
    one.gate_up = a.gate_up.slice(row, row + 1);
    one.out = out;
    kernel(one, {0, 1, x.cols()});
  });
}

void swiglu_backward_on_cpu(const SwigluBackward& a) {
  auto kernel = cpu::swiglu_kernels().backward[a.dout.dtype];
  if (a.float8.empty()) return on_cpu(a, kernel);
  cpu::for_each_quantized_row(a.float8, a.dgate_up, a.dgate_up, [&](int64_t row, const Tensor&) {
    kernel(a, {row, row + 1, a.dout.cols()});
  });
}

}  // namespace

std::string_view name_of(const SwigluForward& args) {
  return args.float8.empty() ? "swiglu_forward" : "swiglu_quantize";
}
std::string_view name_of(const SwigluBackward& args) {
  return args.float8.empty() ? "swiglu_backward" : "swiglu_backward_quantize";
}

void swiglu_forward(Stream& stream, const SwigluForward& args) {
  check(args);
  const int64_t bytes =
      args.gate_up.bytes() + args.float8.out.bytes() + (args.out.empty() ? 0 : args.out.bytes());
  run_op(stream, moving(name_of(args), bytes), swiglu_forward, swiglu_forward_on_cpu, cuda::swiglu_forward,
         args);
}

void swiglu_backward(Stream& stream, const SwigluBackward& args) {
  check(args);
  const int64_t bytes = (args.out.empty() ? 5 : 6) * args.dout.bytes() + args.float8.out.bytes();
  run_op(stream, moving(name_of(args), bytes), swiglu_backward, swiglu_backward_on_cpu, cuda::swiglu_backward,
         args);
}

}  // namespace ottava
