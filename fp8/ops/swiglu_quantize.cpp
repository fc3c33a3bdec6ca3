#include "fp8/ops/swiglu_quantize.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/ops/swiglu_kernels.h"
#include "fp8/ops/rows_on_cpu.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kOp = "swiglu_quantize";

void check(const SwigluQuantize& q) {
  const SwigluForward& a = q.swiglu;
  check_float(kOp, "gate_up", a.gate_up);
  if (a.gate_up.shape.rank() != 2 || a.gate_up.cols() % 2 != 0) {
    fail<ShapeError>(kOp, "gate_up is {}, expected [N, 2F]: gate and up side by side", describe(a.gate_up));
  }
  const Shape half{a.gate_up.rows(), a.gate_up.cols() / 2};
  check_row_output(kOp, q.output, half);
  if (!a.out.empty()) check_tensor(kOp, "out", a.out, a.gate_up.dtype, half);
  if (!a.amax.empty()) fail<ShapeError>(kOp, "amax is given: scales per row and block need no tensor's");
}

void on_cpu(const SwigluQuantize& q) {
  auto kernel = cpu::swiglu_kernels().forward[q.swiglu.gate_up.dtype];
  const Tensor x{nullptr, q.swiglu.gate_up.dtype, q.output.out.codes.shape};
  cpu::for_each_quantized_row(q.output, x, q.swiglu.out, [&](int64_t row, const Tensor& out) {
    kernel({.gate_up = q.swiglu.gate_up.slice(row, row + 1), .out = out}, {0, 1, x.cols()});
  });
}

}  // namespace

void swiglu_quantize(Stream& stream, const SwigluQuantize& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args);
    case DeviceType::cuda:
      return cuda::swiglu_quantize(stream, args);
    case DeviceType::meta:
      stream.recorder().record(
          {.op = kOp,
           .bytes = static_cast<double>(args.swiglu.gate_up.bytes()) + bytes_of(args.output) +
                    (args.swiglu.out.empty() ? 0.0 : static_cast<double>(args.swiglu.out.bytes()))});
  }
}

}  // namespace ottava::fp8
