#include "tests/support/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "core/threads/parallel_for.h"

namespace ottava::test {
namespace {

double seconds_of(Stream& stream, const std::function<void(Stream&)>& body) {
  const auto start = std::chrono::steady_clock::now();
  body(stream);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

BandwidthTable::BandwidthTable(std::string only) : only_(std::move(only)) {
  std::printf("threads %d\n", parallel_threads());
  source_ = filled(DType::f32, {12 << 20});
  copy_ = zeros(DType::f32, source_.shape);
  measure("copy", [&](Stream& s) { cast(s, source_, copy_); });
}

void BandwidthTable::measure(const std::string& name, const std::function<void(Stream&)>& body) {
  if (name != "copy" && name.find(only_) == std::string::npos) return;
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0});
  body(meta);
  double best = 1e9;
  for (int i = 0; i < 25; ++i) {
    copy_seconds_ = std::min(copy_seconds_, seconds_of(cpu_, [&](Stream& s) { cast(s, source_, copy_); }));
    for (int k = 0; k < 3; ++k) best = std::min(best, seconds_of(cpu_, body));
  }
  const double rate = recorder.bytes() / best,
               copy_rate = 2 * static_cast<double>(copy_.bytes()) / copy_seconds_;
  std::printf("%-36s %8.2f GB/s %9.3f ms %5.0f%%\n", name.c_str(), rate / 1e9, best * 1e3,
              100 * rate / copy_rate);
}

Tensor BandwidthTable::zeros(DType dtype, Shape shape) {
  Tensor tensor{nullptr, dtype, shape};
  memory_.push_back(std::make_unique<Buffer>(Device{}, static_cast<size_t>(tensor.bytes())));
  tensor.data = memory_.back()->data();
  fill_zero(cpu_, tensor);
  return tensor;
}

Tensor BandwidthTable::filled(DType dtype, Shape shape) {
  Tensor wide = zeros(DType::f32, shape);
  float* values = wide.as<float>();
  for (int64_t i = 0; i < shape.numel(); ++i) values[i] = static_cast<float>(i % 4099) / 2049.5f - 1.0f;
  if (dtype == DType::f32) return wide;
  Tensor tensor = zeros(dtype, shape);
  cast(cpu_, wide, tensor);
  return tensor;
}

}  // namespace ottava::test
