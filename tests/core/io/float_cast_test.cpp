#include "core/io/float_cast.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

namespace ottava {
namespace {

// The definition, in double: (-1)^s * 2^(e-15) * (1 + m/1024), or m * 2^-24 where e is 0.
double half_by_definition(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double magnitude =
      exponent == 0 ? mantissa * std::ldexp(1.0, -24) : std::ldexp(1.0 + mantissa / 1024.0, exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST_CASE("half: every pattern has the value of the definition and survives the round trip") {
  for (uint32_t i = 0; i < 65536; ++i) {
    auto bits = static_cast<uint16_t>(i);
    if ((bits >> 10 & 31) == 31) continue;
    REQUIRE(half_to_float(bits) == half_by_definition(bits));
    REQUIRE(std::signbit(half_to_float(bits)) == ((bits & 0x8000) != 0));
    REQUIRE(float_to_half(half_to_float(bits)) == bits);
  }
  CHECK(std::isinf(half_to_float(0x7c00)));
  CHECK(half_to_float(0xfc00) < 0);
  CHECK(std::isnan(half_to_float(0x7c01)));
}

TEST_CASE("half: rounds to nearest, ties to even, at every boundary") {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    double a = half_by_definition(low), b = half_by_definition(static_cast<uint16_t>(low + 1));
    auto middle = static_cast<float>((a + b) / 2);  // exact: one more bit than half has
    uint16_t even = low % 2 == 0 ? low : static_cast<uint16_t>(low + 1);
    REQUIRE(float_to_half(middle) == even);
    REQUIRE(float_to_half(std::nextafter(middle, 0.0f)) == low);
    REQUIRE(float_to_half(std::nextafter(middle, 1e9f)) == low + 1);
  }
  CHECK(float_to_half(65519.996f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(-1e30f) == 0xfc00);
  CHECK((float_to_half(std::nanf("")) & 0x7fff) == 0x7e00);
}

TEST_CASE("casts among f32, bf16 and f16") {
  std::vector<float> values = {1.0f, -2.5f, 0.0f, 1000.0f}, back(4);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<char> stored(16);
    cast_floats({DType::f32, values.data()}, {dtype, stored.data()}, 4);
    cast_floats({dtype, stored.data()}, {DType::f32, back.data()}, 4);
    CHECK(back == values);
    CHECK(find_non_finite({dtype, stored.data()}, 4) == 4);
  }
  uint16_t half = 0x3c00;
  bf16 brain;
  cast_floats({DType::f16, &half}, {DType::bf16, &brain}, 1);
  CHECK(static_cast<float>(brain) == 1.0f);
  CHECK_THROWS_WITH(cast_floats({DType::i32, &half}, {DType::f32, back.data()}, 1),
                    Catch::Matchers::Contains("dtype is i32, expected f32, bf16 or f16"));
}

TEST_CASE("the first number that is not finite is found wherever it is") {
  constexpr size_t kCount = 5000;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t place : {size_t{0}, size_t{1023}, size_t{1024}, size_t{4095}, kCount - 1, kCount}) {
        std::vector<float> values(kCount, dtype == DType::f16 ? 65504.0f : 3e38f);
        values[1] = -values[0], values[2] = 1e-7f, values[3] = 0;
        if (place < kCount) values[place] = values[kCount - 1] = bad;
        std::vector<char> stored(kCount * size_of(dtype));
        cast_floats({DType::f32, values.data()}, {dtype, stored.data()}, kCount);
        CHECK(find_non_finite({dtype, stored.data()}, kCount) == place);
        CHECK(find_non_finite({dtype, stored.data()}, place) == place);
      }
    }
  }
}

}  // namespace
}  // namespace ottava
