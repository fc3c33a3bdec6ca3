#include "apps/decide/device_peaks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/decide/cpu_rates.h"
#include "apps/decide/workbench.h"
#include "apps/devices/device_table.h"
#include "core/cpu/matmul_cache.h"
#include "core/cuda/blas_plans.h"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "core/ops/matmul/matmul.h"
#include "fp8/recipe.h"
#include "fp8/scaled_matmul.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

constexpr const char *kOnGpu = "measured on this GPU", *kOnCpu = "measured on this CPU";

double& peak_of(DevicePeaks& peaks, Precision precision) {
  return precision == Precision::fp32 ? peaks.fp32 : precision == Precision::bf16 ? peaks.bf16 : peaks.fp8;
}

constexpr Precision kPrecisions[] = {Precision::bf16, Precision::fp32, Precision::fp8};

// Raises the peaks on which a utilization above 1 depends, one after the other where several hold it up.
void raise_what_counts(DevicePeaks& peaks, const std::function<double(const DevicePeaks&)>& utilization) {
  for (size_t round = 0; round < std::size(kPrecisions); ++round) {
    const double missing = utilization(peaks);
    if (!(missing > 1)) return;
    const DevicePeaks now = peaks;
    for (Precision precision : kPrecisions) {
      DevicePeaks higher = now;
      peak_of(higher, precision) *= 2;
      if (utilization(higher) < missing) peak_of(peaks, precision) *= missing;
    }
    // What was assumed of another's stays so.
    if (now.bf16 == now.fp32) peaks.bf16 = std::max(peaks.bf16, peaks.fp32);
    peaks.fp8 = std::max(peaks.fp8, peaks.bf16);
  }
}

std::string decision_name(Precision precision, std::string_view gpu) {
  return fmt::format("peak {} of {}", name_of(precision), gpu);
}

/// Of the best run of a product.
struct Measured {
  double flops_per_second = 0;
  bool is_disturbed = false;
};

Decisions::Entry peak_entry(Precision precision, const Measured& peak) {
  return rate_entry(std::string(name_of(precision)), peak.flops_per_second, peak.is_disturbed,
                    "FLOP/s of the fastest product");
}

std::string decision_name(cpu::Bf16Products way) { return fmt::format("bf16 {}", name_of(way)); }

// The highest rate of a product of this precision that is kept. A product that widens is one in FP32.
double highest_kept(const Decisions& kept, Precision precision) {
  std::vector<std::string> names{std::string(name_of(precision)), decision_name(cpu::Bf16Products::widened)};
  if (precision == Precision::bf16) names.push_back(decision_name(cpu::Bf16Products::direct));
  double highest = 0;
  for (const std::string& name : names) highest = std::max(highest, rate_of(kept.find(name)));
  return highest;
}

constexpr double kGpuSeconds = 0.2;

double gpu_peak(Device device, Precision precision, const Decisions& decisions) {
  if (const auto* entry = decisions.find(decision_name(precision, cuda::device_name(device.index))))
    return rate_of(entry);
  Stream stream = Stream::cuda(device.index);
  stream.blas_plans().select(cuda::BlasPlans::Selection::fastest);
  return measure_peak(stream, precision, kGpuSeconds);
}

fp8::Float8Tensor codes(Workbench& bench, int64_t edge) {
  return {.rowwise = {bench.tensor(DType::e4m3, {edge, edge}), bench.ones(DType::f32, {1})}};
}

using cpu::Bf16Products;

// A product in one way, with what it needs.
struct TimedProduct {
  Stream stream = Stream::cpu();
  Workbench bench{stream.device()};
  Matmul product;
  explicit TimedProduct(Bf16Products way) {
    constexpr int64_t kEdge = 512;
    stream.matmul_cache().set_products({.matmul = way, .attention = Bf16Products::widened});
    product = {.a = bench.tensor(DType::bf16, {kEdge, kEdge}),
               .b = bench.tensor(DType::bf16, {kEdge, kEdge}),
               .out = bench.tensor(DType::f32, {kEdge, kEdge})};
    bench.give_workspace(stream, matmul_workspace_bytes(stream, product));
  }
  void run() { matmul(stream, product); }
  Decisions::Entry entry(Bf16Products way, double milliseconds) const {
    const double edge = static_cast<double>(product.out.rows());
    return {decision_name(way), fmt::format("{:.4e}", 2e3 * edge * edge * edge / milliseconds),
            "FLOP/s of a smaller product, both ways by turns"};
  }
};

std::vector<Decisions::Entry> measured_ways() {
  TimedProduct direct(Bf16Products::direct), widened(Bf16Products::widened);
  const auto [first, second] = best_milliseconds_by_turns(
      direct.stream, [&] { direct.run(); }, [&] { widened.run(); });
  return {direct.entry(Bf16Products::direct, first), widened.entry(Bf16Products::widened, second)};
}

BestRun best_float8_product(Stream& stream, int64_t edge, double seconds) {
  Workbench bench(stream.device());
  fp8::ScaledMatmul product{
      .a = codes(bench, edge), .b = codes(bench, edge), .out = bench.tensor(DType::bf16, {edge, edge})};
  product.workspace = bench.tensor(DType::u8, {fp8::scaled_matmul_workspace_bytes(stream, product)});
  bench.give_workspace(stream, fp8::scaled_matmul_inner_workspace_bytes(stream, product));
  return best_run(stream, {.seconds = seconds}, [&] { fp8::scaled_matmul(stream, product); });
}

// Of f32 or bf16. A CPU that can multiply bf16 in two ways does so in both.
BestRun best_product(Stream& stream, DType dtype, int64_t edge, double seconds) {
  const bool on_gpu = stream.type() == DeviceType::cuda;
  Workbench bench(stream.device());
  const auto matrix = [&](DType type) { return bench.tensor(type, {edge, edge}); };
  const Matmul product{.a = matrix(dtype), .b = matrix(dtype), .out = matrix(on_gpu ? dtype : DType::f32)};
  const auto measure = [&] {
    bench.give_workspace(stream, matmul_workspace_bytes(stream, product));
    return best_run(stream, {.seconds = seconds}, [&] { matmul(stream, product); });
  };
  BestRun best = measure();
  if (on_gpu || dtype != DType::bf16 || !cpu::multiplies_bf16_directly()) return best;
  const cpu::ProductChoice before = stream.matmul_cache().products();
  for (cpu::Bf16Products way : {cpu::Bf16Products::direct, cpu::Bf16Products::widened}) {
    if (way == before.matmul) continue;
    stream.matmul_cache().set_products({.matmul = way, .attention = before.attention});
    if (const BestRun other = measure(); other.seconds < best.seconds) best = other;
  }
  stream.matmul_cache().set_products(before);
  return best;
}

// 64 columns for each multiprocessor: 8,192 on the largest GPUs, milliseconds on the smallest.
int64_t peak_edge(const Stream& stream) {
  if (stream.type() != DeviceType::cuda) return 1024;
  return std::clamp<int64_t>(64 * cuda::sm_count(stream.device().index), 256, 8192) / 256 * 256;
}

Measured measured_peak(Stream& stream, Precision precision, double seconds) {
  const int64_t edge = peak_edge(stream);
  const DType dtype = precision == Precision::fp32 ? DType::f32 : DType::bf16;
  const BestRun best = precision == Precision::fp8 ? best_float8_product(stream, edge, seconds)
                                                   : best_product(stream, dtype, edge, seconds);
  return {2.0 * edge * edge * edge / best.seconds, best.is_disturbed};
}

// A peak that is kept may take longer to measure, to find a moment in which the machine does nothing else.
// Where there was none, every start looks for one shortly.
double kept_cpu_peak(Precision precision, const PeakSearch& search) {
  constexpr double kSeconds = 0.1, kSecondsIfKept = 0.5;
  const MeasurementCache cache = cpu_rates(search.cache);
  const Decisions kept = cache.read();
  const Decisions::Entry* entry = kept.find(name_of(precision));
  const double highest = highest_kept(kept, precision);
  if (is_settled(entry)) return highest;
  Stream stream = Stream::cpu();
  Measured peak = measured_peak(stream, precision, entry || cache.file().empty() ? kSeconds : kSecondsIfKept);
  peak.flops_per_second = std::max(peak.flops_per_second, highest);
  const Decisions::Entry found = peak_entry(precision, peak);
  cache.write({found});
  return rate_of(&found);  // in the digits that later runs will read
}

bool multiplies_float8(Device device) {
  return !fp8::recipes_of_compute_capability(cuda::compute_capability(device.index)).empty();
}

}  // namespace

std::optional<DevicePeaks> data_sheet_peaks(std::string_view name) {
  const std::optional<DeviceTable> known = device_of_driver(name);
  if (!known) return {};
  const double fp8 = known->fp8_tflops > 0 ? known->fp8_tflops : known->bf16_tflops;
  return DevicePeaks{.fp32 = known->fp32_tflops * 1e12,
                     .bf16 = known->bf16_tflops * 1e12,
                     .fp8 = fp8 * 1e12,
                     .source = fmt::format("{} (dense)", name)};
}

void set_given_peaks(DevicePeaks& peaks, const MetricsConfig& config) {
  if (config.peak_tflops_bf16 > 0) {
    peaks.bf16 = config.peak_tflops_bf16 * 1e12;
    peaks.source = "metrics.peak_tflops_bf16";
  }
  if (config.peak_tflops_fp8 > 0) peaks.fp8 = config.peak_tflops_fp8 * 1e12;
}

double measure_peak(Stream& stream, Precision precision, double seconds) {
  return measured_peak(stream, precision, seconds).flops_per_second;
}

void settle_peaks(Experiment& e, RankGroups& ranks, Device device, const Decisions& saved) {
  if (!device.is_gpu()) return;
  const std::string gpu = cuda::device_name(device.index);
  fail_together(*ranks.control, "peaks", [&] {
    if (!ranks.is_first() || data_sheet_peaks(gpu)) return;
    const MetricsConfig& given = e.config.metrics;
    std::vector<Precision> unknown;
    if (given.peak_tflops_bf16 == 0) unknown = {Precision::fp32, Precision::bf16};
    if (given.peak_tflops_fp8 == 0 && e.shape.float8.is_on() && multiplies_float8(device))
      unknown.push_back(Precision::fp8);
    for (Precision precision : unknown) {
      const std::string name = decision_name(precision, gpu);
      const Decisions::Entry* before = saved.find(name);
      if (before && rate_of(before) == 0) {
        fail<ConfigError>("decisions", "'{}' is '{}', expected FLOP/s: start with --redecide", name,
                          before->value);
      }
      const Decisions::Entry& entry = e.decisions.entries.emplace_back(
          before ? *before
                 : Decisions::Entry{name, fmt::format("{:.3e}", gpu_peak(device, precision, {})), kOnGpu});
      log_decision({name, entry.value + " FLOP/s", entry.reason}, before != nullptr);
    }
  });
  e.decisions = of_first_rank(e.decisions, *ranks.control);
}

DevicePeaks find_device_peaks(Device device, const PeakSearch& search) {
  const bool is_gpu = device.is_gpu();
  DevicePeaks peaks;
  if (is_gpu) peaks = data_sheet_peaks(cuda::device_name(device.index)).value_or(DevicePeaks{});
  set_given_peaks(peaks, search.metrics);
  const auto measured = [&](Precision precision) {
    return is_gpu ? gpu_peak(device, precision, search.decisions) : kept_cpu_peak(precision, search);
  };
  const bool is_bf16_known = peaks.bf16 > 0;
  if (!is_bf16_known && search.uses_bf16) peaks.bf16 = measured(Precision::bf16);
  if (peaks.fp32 == 0 && search.uses_fp32 && search.metrics.peak_tflops_bf16 == 0)
    peaks.fp32 = measured(Precision::fp32);
  if (peaks.fp32 == 0) peaks.fp32 = peaks.bf16 / 2;
  if (peaks.bf16 == 0) peaks.bf16 = peaks.fp32;
  if (!is_bf16_known) peaks.source = is_gpu ? kOnGpu : kOnCpu;
  if (peaks.fp8 == 0 && is_gpu) {
    const auto* entry = search.decisions.find(decision_name(Precision::fp8, cuda::device_name(device.index)));
    if (entry) peaks.fp8 = rate_of(entry);
  }
  if (peaks.fp8 == 0) peaks.fp8 = peaks.bf16;
  return peaks;
}

double part_of_bf16_peak(Bf16Products way, const PeakSearch& search) {
  if (!cpu::multiplies_bf16_directly()) return 1;
  const MeasurementCache cache = cpu_rates(search.cache);
  Decisions kept = cache.read();
  const auto rate = [&](Bf16Products of) { return rate_of(kept.find(decision_name(of))); };
  if (rate(Bf16Products::direct) == 0 || rate(Bf16Products::widened) == 0) {
    kept.entries = measured_ways();
    cache.write(kept.entries);
  }
  return rate(way) / std::max(rate(Bf16Products::direct), rate(Bf16Products::widened));
}

void raise_peaks(DevicePeaks& peaks, Device device, const PeakSearch& search,
                 const std::function<double(const DevicePeaks&)>& utilization) {
  if (!(utilization(peaks) > 1)) return;
  const DevicePeaks before = peaks;
  const bool is_measured = before.source == kOnCpu || before.source == kOnGpu;
  if (device.type == DeviceType::cpu && is_measured) {
    constexpr double kSeconds = 0.1;
    Stream stream = Stream::cpu();
    std::vector<Decisions::Entry> higher;
    const std::pair<Precision, bool> kinds[] = {{Precision::fp32, search.uses_fp32},
                                                {Precision::bf16, search.uses_bf16}};
    for (const auto& [precision, is_used] : kinds) {
      if (!is_used) continue;
      double& peak = peak_of(peaks, precision);
      const Measured now = measured_peak(stream, precision, kSeconds);
      if (now.flops_per_second <= peak) continue;
      peak = now.flops_per_second;
      higher.push_back(peak_entry(precision, now));
    }
    if (search.metrics.peak_tflops_fp8 == 0) peaks.fp8 = peaks.bf16;
    cpu_rates(search.cache).write(higher);
  }
  raise_what_counts(peaks, utilization);
  for (Precision precision : kPrecisions) {
    DevicePeaks old = before;
    if (peak_of(old, precision) == peak_of(peaks, precision)) continue;
    log::info(
        "This run is faster than the {} peak of {:.3e} FLOPS ({}) allows: utilization is relative to {:.3e} "
        "from here on",
        name_of(precision), peak_of(old, precision), before.source, peak_of(peaks, precision));
    return;
  }
}

}  // namespace ottava
