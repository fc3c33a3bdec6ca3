// Bytes per second of the FP8 operations that memory should bound, at 8192 tokens of 1536, beside a plain
// copy. The best of 25 counts.
//     ninja -C build fp8_bandwidth && OMP_NUM_THREADS=2 build/tests/fp8_bandwidth
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "core/parallel_for.h"
#include "fp8/quantize.h"

using namespace ottava;
using namespace ottava::fp8;

namespace {

constexpr int64_t kRows = 8192, kCols = 1536;

void measure(const char* name, const std::function<void(Stream&)>& body) {
  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0}), cpu = Stream::cpu();
  body(meta);
  double best = 1e9;
  for (int i = 0; i < 25; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body(cpu);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::printf("%-36s %8.2f GB/s %9.3f ms\n", name, recorder.bytes() / best / 1e9, best * 1e3);
}

}  // namespace

int main() {
  std::vector<std::unique_ptr<Buffer>> memory;
  Stream s = Stream::cpu();
  auto zeros = [&](DType dtype, Shape shape) {
    Tensor tensor{nullptr, dtype, shape};
    memory.push_back(std::make_unique<Buffer>(Device{}, static_cast<size_t>(tensor.bytes())));
    tensor.data = memory.back()->data();
    fill_zero(s, tensor);
    return tensor;
  };
  std::printf("threads %d\n", parallel_threads());
  const Tensor wide = zeros(DType::f32, {kRows, kCols}), copy = zeros(DType::f32, {kRows, kCols});
  for (int64_t i = 0; i < wide.numel(); ++i)
    wide.as<float>()[i] = static_cast<float>(i % 4099) / 2049.5f - 1.0f;
  const Tensor x = zeros(DType::bf16, {kRows, kCols}), y = zeros(DType::bf16, {kRows, kCols});
  cast(s, wide, x);
  const Tensor amax_1 = zeros(DType::u32, {1}), columns = zeros(DType::u32, {kCols}),
               counters = zeros(DType::i64, {3});
  measure("copy", [&](Stream& t) { cast(t, wide, copy); });
  measure("amax", [&](Stream& t) { amax(t, x, amax_1); });
  measure("column_amax", [&](Stream& t) { column_amax(t, x, columns); });
  for (Granularity g : {Granularity::tensor, Granularity::row, Granularity::block_1x128,
                        Granularity::block_128x128, Granularity::block_1x32}) {
    auto made = [&](int64_t rows, int64_t cols) {
      return Quantized{zeros(DType::e4m3, {rows, cols}), zeros(scale_dtype(g), scale_shape(g, rows, cols))};
    };
    Quantize args{
        .x = x, .granularity = g, .rounding = ScaleRounding::down_to_power_of_two, .out = made(kRows, kCols)};
    if (g == Granularity::tensor) args.amax = amax_1;
    auto named = [&](const char* what) { return fmt::format("{} {}", what, name_of(g)); };
    measure(named("quantize").c_str(), [&](Stream& t) { quantize(t, args); });
    auto counted = args;
    counted.counters = counters;
    measure(named("quantize, counting").c_str(), [&](Stream& t) { quantize(t, counted); });
    args.transposed = made(kCols, kRows);
    if (g == Granularity::row) args.column_amax = columns;
    measure(named("quantize and transpose").c_str(), [&](Stream& t) { quantize(t, args); });
    measure(named("dequantize").c_str(), [&](Stream& t) { dequantize(t, args.out, g, y); });
    if (g == Granularity::tensor) {
      measure("transpose_bytes",
              [&](Stream& t) { transpose_bytes(t, args.out.bytes, args.transposed.bytes); });
    }
  }
}
