#include <fstream>
#include <string>

#include <unistd.h>

#include "apps/predict/device_table.h"
#include "apps/report/metrics_reporter.h"
#include "core/cuda/runtime.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {
namespace {

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
