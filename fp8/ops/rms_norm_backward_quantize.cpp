#include "fp8/ops/rms_norm_backward_quantize.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/ops/norm/rms_norm_kernels.h"
#include "core/ops/row_groups.h"
#include "fp8/ops/rows_on_cpu.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kOp = "rms_norm_backward_quantize";

void check(const Stream& stream, const RmsNormBackwardQuantize& q) {
  const RmsNormBackward& a = q.norm;
  check_float(kOp, "x", a.x);
  check_row_output(kOp, q.output, {a.x.rows(), a.x.cols()});
  check_rms_norm_backward(kOp, a, rms_norm_workspace(stream, a.x.cols()));
  if (!a.amax.empty()) fail<ShapeError>(kOp, "amax is given: scales per row and block need no tensor's");
}

void on_cpu(const RmsNormBackwardQuantize& q) {
  const RmsNormBackward& a = q.norm;
  auto kernel = cpu::rms_norm_kernels().backward[a.x.dtype];
  const int64_t rows = a.x.rows(), cols = a.x.cols(),
                row_bytes = cols * static_cast<int64_t>(size_of(a.x.dtype));
  const cpu::RowQuantizer quantizer(cpu::quantization_of(q.output, a.dx.reshape({rows, cols})));
  float* partials = a.workspace.as<float>();
  for_each_row_group(rows, cols, partials, [&](float* partial, int64_t begin, int64_t end) {
    QuantizeCounts counts;
    for (int64_t r = begin; r < end; ++r) {
      kernel(a, {r, r + 1, cols}, partial);
      quantizer.quantize_row(r, static_cast<const uint8_t*>(a.dx.data) + r * row_bytes,
                             quantizer.counts_or_null(counts));
    }
    quantizer.add(counts);
  });
  add_row_groups(partials, cols, a.dweight.as<float>(), cols);
  quantizer.count_elements();
}

}  // namespace

void rms_norm_backward_quantize(Stream& stream, const RmsNormBackwardQuantize& args) {
  check(stream, args);
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args);
    case DeviceType::cuda:
      return cuda::rms_norm_backward_quantize(stream, args);
    case DeviceType::meta: {
      const double passes = args.norm.dresidual.empty() ? 3 : 4;
      stream.recorder().record(
          {.op = kOp, .bytes = passes * static_cast<double>(args.norm.x.bytes()) + bytes_of(args.output)});
    }
  }
}

}  // namespace ottava::fp8
