#include "apps/bench/operation_bench.h"

#include <algorithm>

#include "apps/decide/workbench.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"

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
  const bool on_gpu = stream.device().is_gpu();
  const int64_t elements = int64_t{1} << (on_gpu ? 28 : 25), n = on_gpu ? 8192 : 1024;
  BenchPeaks peaks;
  {
    Workbench bench(stream.device());
    const Tensor from = bench.tensor(DType::bf16, {elements}), to = bench.tensor(DType::bf16, {elements});
    const double seconds = seconds_per_call(
        stream, [&](Stream& s) { copy(s, from, to); }, kPeakSeconds);
    peaks.bytes_per_second = 2.0 * from.bytes() / seconds;
  }
  const auto product_of = [&](DType dtype) {
    Workbench bench(stream.device());
    auto matrix = [&] { return bench.tensor(dtype, {n, n}); };
    const Matmul product{.a = matrix(), .b = matrix(), .out = matrix()};
    bench.give_workspace(stream, matmul_workspace_bytes(stream, product));
    const double seconds = seconds_per_call(
        stream, [&](Stream& s) { matmul(s, product); }, kPeakSeconds);
    return 2.0 * n * n * n / seconds;
  };
  peaks.flops_per_second = product_of(DType::bf16);
  if (with_f32) peaks.f32_flops_per_second = product_of(DType::f32);
  return peaks;
}

}  // namespace ottava
