// Matrices larger than caches, whose transposes are stored past them: the bytes are those of quantizing the
// transposed matrix.
#include <array>
#include <bit>
#include <random>

#include "fp8/quantize.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

constexpr int64_t kRows = 2112, kCols = 2090;  // the last band of rows and the last columns are short

std::vector<uint16_t> some_values() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(kRows * kCols);
  for (auto& bits : x) bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
  return x;
}
std::vector<uint16_t> transposed(const std::vector<uint16_t>& x) {
  std::vector<uint16_t> y(x.size());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; ++c)
      y[static_cast<size_t>(c * kRows + r)] = x[static_cast<size_t>(r * kCols + c)];
  }
  return y;
}

struct Output {
  Output(Stream& stream, DType format, Granularity g, int64_t rows, int64_t cols)
      : bytes(stream, format, {rows, cols}), inverse(stream, scale_dtype(g), scale_shape(g, rows, cols)) {}
  Float8Codes quantized() { return {bytes, inverse}; }
  std::vector<uint8_t> codes() const { return bytes.download_as<uint8_t>(); }
  /// E8M0 bytes or bits of floats.
  std::vector<uint32_t> inverse_bits() const {
    if (inverse.tensor().dtype == DType::f32) return inverse.download_as<uint32_t>();
    const auto exponents = inverse.download_as<uint8_t>();
    return {exponents.begin(), exponents.end()};
  }
  DeviceBuffer bytes, inverse;
};

}  // namespace

TEST_CASE("on the CPU, the transpose of a matrix larger than caches is that of a small one") {
  Stream cpu = Stream::cpu();
  const std::vector<uint16_t> values = some_values();
  DeviceBuffer x(cpu, DType::bf16, {kRows, kCols}), xt(cpu, DType::bf16, {kCols, kRows});
  x.upload_as<uint16_t>(values);
  xt.upload_as<uint16_t>(transposed(values));
  for (DType format : {DType::e4m3, DType::e5m2}) {
    for (ScaleRounding rounding : {ScaleRounding::none, ScaleRounding::down_to_power_of_two}) {
      for (Granularity g : {Granularity::tensor, Granularity::row, Granularity::block_1x128,
                            Granularity::block_128x128, Granularity::block_1x32}) {
        if (g == Granularity::block_1x32 && rounding == ScaleRounding::none) continue;
        INFO(name_of(format) << " " << name_of(g) << " power of two " << (rounding != ScaleRounding::none));
        DeviceBuffer amax_1(cpu, DType::u32, {1}), columns(cpu, DType::u32, {kCols});
        amax_1.upload_as<uint32_t>(std::array<uint32_t, 1>{});
        columns.upload_as<uint32_t>(std::vector<uint32_t>(kCols));
        Output want(cpu, format, g, kCols, kRows), want_out(cpu, format, g, kRows, kCols),
            out(cpu, format, g, kRows, kCols), both(cpu, format, g, kCols, kRows),
            only(cpu, format, g, kCols, kRows);
        Quantize args{.x = x, .granularity = g, .rounding = rounding, .out = out.quantized()};
        if (g == Granularity::tensor) amax(cpu, x, amax_1), args.amax = amax_1;
        if (g == Granularity::row) column_amax(cpu, x, columns), args.column_amax = columns;
        Quantize reference = args;
        reference.column_amax = {};
        reference.out = want_out.quantized();
        quantize(cpu, reference);
        reference.x = xt;
        reference.out = want.quantized();
        quantize(cpu, reference);
        args.transposed = both.quantized();
        quantize(cpu, args);
        args.out = {};
        args.transposed = only.quantized();
        quantize(cpu, args);
        // Each comparison as one value: millions of elements are not to be printed.
        CHECK((out.codes() == want_out.codes()));
        CHECK((both.codes() == want.codes()));
        CHECK((only.codes() == want.codes()));
        CHECK((both.inverse_bits() == want.inverse_bits()));
        CHECK((only.inverse_bits() == want.inverse_bits()));
      }
    }
  }
}
