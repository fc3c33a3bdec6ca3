#include <array>
#include <cmath>
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

TEST_CASE("dequantize gives code times inverse, for every code") {
  for_each_device([](Stream& stream) {
    for_each_recipe([&](ReferenceRecipe recipe) {
      const Size size{130, 300};
      const auto values = spread_values(size.rows * size.cols, 4);
      Quantizing q(stream, values, size, recipe, DType::bf16);
      quantize(stream, q.args);
      const auto table = finite_values(recipe.format);
      const auto codes = q.out.codes();
      const auto inverses = q.out.inverses();
      for (DType dtype : {DType::f32, DType::bf16}) {
        DeviceBuffer y(stream, dtype, {size.rows, size.cols});
        dequantize(stream, q.out.view(), recipe.granularity, y);
        const auto got = y.floats();
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const auto magnitude = static_cast<float>(table[codes[i] & 0x7f]);
          float want = (codes[i] & 0x80 ? -magnitude : magnitude) * inverses[i];
          if (dtype == DType::bf16) want = static_cast<float>(bf16(want));
          wrong += got[i] != want;
        }
        CHECK(wrong == 0);
      }
    });
    for (DType format : {DType::e4m3, DType::e5m2}) {
      std::vector<uint8_t> codes(256);
      for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
      DeviceBuffer bytes(stream, format, {1, 256}), one(stream, DType::f32, {1}, std::array{1.0f}),
          y(stream, DType::f32, {1, 256});
      bytes.upload_as<uint8_t>(codes);
      dequantize(stream, {bytes, one}, Granularity::tensor, y);
      const auto got = y.floats();
      for (size_t i = 0; i < 256; ++i) {
        const float want = decode(codes[i], format_of(format));
        CHECK((got[i] == want || (std::isnan(got[i]) && std::isnan(want))));
      }
    }
  });
}
