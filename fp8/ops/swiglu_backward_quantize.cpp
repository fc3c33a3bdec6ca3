#include "fp8/ops/swiglu_backward_quantize.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/ops/swiglu_kernels.h"
#include "fp8/ops/rows_on_cpu.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kOp = "swiglu_backward_quantize";

void check(const SwigluBackwardQuantize& q) {
  check_swiglu_backward(kOp, q.swiglu);
  check_row_output(kOp, q.output, q.swiglu.dgate_up.shape);
  if (!q.swiglu.amax.empty())
    fail<ShapeError>(kOp, "amax is given: scales per row and block need no tensor's");
}

void on_cpu(const SwigluBackwardQuantize& q) {
  const SwigluBackward& a = q.swiglu;
  auto kernel = cpu::swiglu_kernels().backward[a.gate_up.dtype];
  cpu::for_each_quantized_row(q.output, a.dgate_up, a.dgate_up, [&](int64_t row, const Tensor&) {
    kernel(a, {row, row + 1, a.dout.cols()});
  });
}

}  // namespace

void swiglu_backward_quantize(Stream& stream, const SwigluBackwardQuantize& args) {
  check(args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args);
    case DeviceType::cuda:
      return cuda::swiglu_backward_quantize(stream, args);
    case DeviceType::meta: {
      const double passes = args.swiglu.out.empty() ? 5 : 6;
      stream.recorder().record(
          {.op = kOp,
           .bytes = passes * static_cast<double>(args.swiglu.dout.bytes()) + bytes_of(args.output)});
    }
  }
}

}  // namespace ottava::fp8
