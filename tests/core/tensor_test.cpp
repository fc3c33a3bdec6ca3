#include "core/tensor.h"

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("elements are accessed as what they are; those of one byte as bytes too") {
  float four[4] = {};
  const Tensor values{.data = four, .dtype = DType::f32, .shape = {4}};
  CHECK(values.as<float>() == four);
  CHECK_THROWS_WITH(values.as<int32_t>(), "[tensor] element type is f32, accessed as i32");
  CHECK_THROWS_AS(values.as<uint8_t>(), ShapeError);
  uint8_t codes[4] = {};
  const Tensor narrow{.data = codes, .dtype = DType::e4m3, .shape = {4}};
  CHECK(narrow.as<uint8_t>() == codes);
  CHECK_THROWS_AS(narrow.as<float>(), ShapeError);
}
