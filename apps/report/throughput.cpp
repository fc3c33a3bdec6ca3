#include "apps/report/throughput.h"

namespace ottava {

Throughput throughput(const StepFlops& flops, const DevicePeaks& peaks, const StepRate& rate) {
  Throughput out;
  out.tokens_per_second = rate.tokens / rate.seconds / rate.ranks;
  const double model_flops = rate.model_flops_per_token * out.tokens_per_second;
  out.tflops = model_flops / 1e12;
  out.mfu_percent = 100 * model_flops / peaks.bf16;
  out.conservative_mfu_percent = 100 * model_flops / (flops.fp8 > 0 ? peaks.fp8 : peaks.bf16);
  const double ideal_seconds = flops.fp32 / peaks.fp32 + flops.bf16 / peaks.bf16 + flops.fp8 / peaks.fp8;
  out.utilization_percent = 100 * ideal_seconds / rate.seconds;
  return out;
}

}  // namespace ottava
