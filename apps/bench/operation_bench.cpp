#include "apps/bench/operation_bench.h"

#include <algorithm>

#include "apps/decide/device_peaks.h"
#include "apps/decide/workbench.h"
#include "core/ops/elementwise.h"

namespace ottava {
namespace {

constexpr double kPeakSeconds = 0.2;

}  // namespace

double seconds_per_call(Stream& stream, const std::function<void(Stream&)>& run, double seconds) {
  constexpr size_t kBatches = 5;
  StreamTimer timer(stream);
  auto batch = [&](int calls) {
    const double milliseconds = timer.milliseconds([&] {
      for (int i = 0; i < calls; ++i) run(stream);
    });
    return std::max(milliseconds / 1e3, 1e-9);
  };
  batch(1);
  double spent = batch(1);
  const int calls = static_cast<int>(std::clamp(seconds / kBatches / spent, 1.0, 10'000.0));
  std::vector<double> times{spent};
  while (times.size() <= kBatches && spent < seconds) {
    const double time = batch(calls);
    spent += time;
    times.push_back(time / calls);
  }
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

BenchPeaks measure_peaks(Stream& stream, bool with_f32) {
  BenchPeaks peaks{.flops_per_second = measure_peak(stream, Precision::bf16, kPeakSeconds)};
  if (with_f32) peaks.f32_flops_per_second = measure_peak(stream, Precision::fp32, kPeakSeconds);
  const int64_t elements = int64_t{1} << (stream.device().is_gpu() ? 28 : 25);
  Workbench bench(stream.device());
  const Tensor from = bench.tensor(DType::bf16, {elements}), to = bench.tensor(DType::bf16, {elements});
  const double seconds = seconds_per_call(
      stream, [&](Stream& s) { copy(s, from, to); }, kPeakSeconds);
  peaks.bytes_per_second = 2.0 * from.bytes() / seconds;
  return peaks;
}

}  // namespace ottava
