#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "fp8/quantize.h"
#include "tests/fp8/quantizing.h"
#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

TEST_CASE("amax is that of the bf16-rounded values, keeps a larger one and never loses a NaN") {
  for_each_device([](Stream& stream) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (Size size : kSizes) {
        auto values = normal_values(size.rows * size.cols, 1);
        std::vector<float> rounded;
        for (float x : values) rounded.push_back(static_cast<float>(bf16(x)));
        DeviceBuffer x(stream, dtype, {size.rows, size.cols}, values), got(stream, DType::u32, {1}),
            columns(stream, DType::u32, {size.cols});
        got.upload_as<uint32_t>(std::array{0u});
        columns.upload_as<uint32_t>(std::vector<uint32_t>(static_cast<size_t>(size.cols), 0u));
        fp8::amax(stream, x, got);
        column_amax(stream, x, columns);
        CHECK(got.download_as<uint32_t>()[0] == largest_bits(rounded));
        const auto by_column = columns.download_as<uint32_t>();
        for (int64_t c = 0; c < size.cols; ++c) {
          std::vector<float> column;
          for (int64_t r = 0; r < size.rows; ++r)
            column.push_back(rounded[static_cast<size_t>(r * size.cols + c)]);
          REQUIRE(by_column[static_cast<size_t>(c)] == largest_bits(column));
        }
        got.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(1e30f)});
        fp8::amax(stream, x, got);
        CHECK(got.download_as<uint32_t>()[0] == std::bit_cast<uint32_t>(1e30f));
        values.back() = std::numeric_limits<float>::quiet_NaN();
        x.upload(values);
        fp8::amax(stream, x, got);
        CHECK(got.download_as<uint32_t>()[0] > 0x7f800000u);
      }
    }
  });
}

TEST_CASE("amax of the columns of very many rows is that of each") {
  constexpr size_t kRows = 8192 * 64 + 65, kCols = 4;
  const auto largest = [](size_t c) { return 8 + static_cast<float>(c); };
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
  for (size_t c = 0; c < kCols; ++c) values[(kRows - 1 - c * (kRows / 5)) * kCols + c] = largest(c);
  for_each_device([&](Stream& stream) {
    DeviceBuffer x(stream, DType::f32, {kRows, kCols}, values), columns(stream, DType::u32, {kCols});
    columns.upload_as<uint32_t>(std::vector<uint32_t>(kCols, 0u));
    column_amax(stream, x, columns);
    const auto got = columns.download_as<uint32_t>();
    for (size_t c = 0; c < kCols; ++c) CHECK(got[c] == std::bit_cast<uint32_t>(largest(c)));
  });
}
