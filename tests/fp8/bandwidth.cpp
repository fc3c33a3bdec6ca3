// Bytes per second of the FP8 operations that memory should bound, at 8192 tokens of 1536, beside a plain
// copy. An argument chooses the lines that contain it, a second one the number of tokens: 256 show what the
// arithmetic takes, in the cache.
//     ninja -C build fp8_bandwidth && OMP_NUM_THREADS=2 build/tests/fp8_bandwidth
#include "tests/support/bandwidth.h"

#include <cstdlib>

#include "fp8/quantize.h"

using namespace ottava;
using namespace ottava::fp8;

int main(int argc, char** argv) {
  const int64_t kRows = argc > 2 ? std::atoll(argv[2]) : 8192, kCols = 1536;
  test::BandwidthTable table(argc > 1 ? argv[1] : "");
  const Tensor x = table.filled(DType::bf16, {kRows, kCols}), y = table.zeros(DType::bf16, {kRows, kCols}),
               weight = table.filled(DType::f32, {kRows, kCols});
  const Tensor amax_1 = table.zeros(DType::u32, {1}), columns = table.zeros(DType::u32, {kCols}),
               counters = table.zeros(DType::i64, {3});
  Stream cpu = Stream::cpu();
  amax(cpu, x, amax_1);
  column_amax(cpu, x, columns);
  table.measure("amax", [&](Stream& s) { amax(s, x, amax_1); });
  table.measure("column_amax", [&](Stream& s) { column_amax(s, x, columns); });
  for (Granularity g : {Granularity::tensor, Granularity::row, Granularity::block_1x128,
                        Granularity::block_128x128, Granularity::block_1x32}) {
    auto made = [&](int64_t rows, int64_t cols) {
      return Float8Codes{table.zeros(DType::e4m3, {rows, cols}),
                         table.zeros(scale_dtype(g), scale_shape(g, rows, cols))};
    };
    auto named = [&](const char* what) { return fmt::format("{} {}", what, name_of(g)); };
    Quantize out{
        .x = x, .granularity = g, .rounding = ScaleRounding::down_to_power_of_two, .out = made(kRows, kCols)};
    if (g == Granularity::tensor) out.amax = amax_1;
    auto counted = out, both = out, from_f32 = out;
    counted.counters = counters;
    from_f32.x = weight;
    both.transposed = made(kCols, kRows);
    if (g == Granularity::row) both.column_amax = columns;
    auto transposed = both;
    transposed.out = {};
    table.measure(named("quantize"), [&](Stream& s) { quantize(s, out); });
    table.measure(named("quantize, counting"), [&](Stream& s) { quantize(s, counted); });
    table.measure(named("quantize f32"), [&](Stream& s) { quantize(s, from_f32); });
    table.measure(named("quantize and transpose"), [&](Stream& s) { quantize(s, both); });
    table.measure(named("quantize transposed only"), [&](Stream& s) { quantize(s, transposed); });
    table.measure(named("dequantize"), [&](Stream& s) { dequantize(s, out.out, g, y); });
    if (g != Granularity::tensor) continue;
    table.measure("transpose_codes",
                  [&](Stream& s) { transpose_codes(s, out.out.codes, both.transposed.codes); });
  }
}
