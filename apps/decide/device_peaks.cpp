#include <fstream>
#include <string>

#include <unistd.h>

#include "apps/report/metrics_reporter.h"
#include "core/cuda/runtime.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {
namespace {

struct KnownDevice {
  std::string_view name;   ///< part of what the driver calls it; the first match counts
  double fp32, bf16, fp8;  ///< dense, FLOP/s; fp8 0: none
};
// NVIDIA's data sheets (A100 2022, L40S 2023, H100 2023, H200 2024, HGX B200 2025). FP32 is that of the
// ordinary cores: products of f32 operands keep their precision, TF32 is not used.
constexpr KnownDevice kKnownDevices[] = {
    {"H100 NVL", 60e12, 835e12, 1671e12}, {"H100 PCIe", 51e12, 756e12, 1513e12},
    {"H100", 67e12, 989e12, 1979e12},     {"H200 NVL", 60e12, 835e12, 1671e12},
    {"H200", 67e12, 989e12, 1979e12},     {"B200", 75e12, 2250e12, 4500e12},
    {"A100", 19.5e12, 312e12, 0},         {"L40S", 91.6e12, 362e12, 733e12},
};

MemoryUse host_memory() {
  std::ifstream status("/proc/self/status");
  double kib = 0;
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      status >> kib;
      break;
    }
  }
  double total = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return {kib / (1 << 20), 100 * kib * 1024 / total};
}

}  // namespace

MemoryUse memory_use(Device device) {
  if (device.type != DeviceType::cuda) return host_memory();
  cuda::MemoryInfo info = cuda::memory_info(device.index);
  double used = static_cast<double>(info.total_bytes - info.free_bytes);
  return {used / (1 << 30), 100 * used / static_cast<double>(info.total_bytes)};
}

std::optional<DevicePeaks> data_sheet_peaks(std::string_view name) {
  for (const KnownDevice& known : kKnownDevices) {
    if (name.find(known.name) == std::string_view::npos) continue;
    return DevicePeaks{.fp32 = known.fp32,
                       .bf16 = known.bf16,
                       .fp8 = known.fp8 > 0 ? known.fp8 : known.bf16,
                       .source = fmt::format("{} (dense)", name)};
  }
  return {};
}

void set_given_peaks(DevicePeaks& peaks, const MetricsConfig& config) {
  if (config.peak_tflops_bf16 > 0) {
    peaks.bf16 = config.peak_tflops_bf16 * 1e12;
    peaks.source = "metrics.peak_tflops_bf16";
  }
  if (config.peak_tflops_fp8 > 0) peaks.fp8 = config.peak_tflops_fp8 * 1e12;
}

DevicePeaks find_device_peaks(Device device, const MetricsConfig& config, PrecisionsUsed used) {
  const bool is_gpu = device.type == DeviceType::cuda;
  DevicePeaks peaks;
  if (is_gpu) peaks = data_sheet_peaks(cuda::device_name(device.index)).value_or(DevicePeaks{});
  set_given_peaks(peaks, config);
  if (peaks.bf16 == 0 && used.bf16) {
    peaks.bf16 = measure_matmul_peak_flops(DType::bf16);
    peaks.source = "measured";
  }
  if (peaks.fp32 == 0 && used.fp32 && !(is_gpu && config.peak_tflops_bf16 > 0))
    peaks.fp32 = measure_matmul_peak_flops(DType::f32);
  if (peaks.fp32 == 0) peaks.fp32 = peaks.bf16 / 2;
  if (peaks.bf16 == 0) {
    peaks.bf16 = peaks.fp32;
    peaks.source = "measured";
  }
  if (peaks.fp8 == 0) peaks.fp8 = peaks.bf16;
  return peaks;
}

}  // namespace ottava
