#include "core/float8/formats.h"

#include <cfloat>
#include <cmath>
#include <random>

#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#if defined(OTTAVA_CUDA_FP8_HEADER)
#include <cuda_fp8.h>
#endif

using namespace ottava;
using namespace ottava::fp8;
using ottava::test::TableEncoder;

namespace {

constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};

/// Every BF16 value, thresholds with their neighbours, and floats of random bits and of random magnitude near
/// the formats.
std::vector<float> inputs(int64_t random) {
  std::vector<float> values;
  for (uint32_t u = 0; u < 65536; ++u)
    values.push_back(static_cast<float>(bf16::from_bits(static_cast<uint16_t>(u))));
  for (float edge : {464.0f,   448.0f,   61440.0f, 57344.0f,  0x1p-6f,   0x1p-9f,    0x1p-10f,
                     0x1p-14f, 0x1p-16f, 0x1p-17f, 0x1.8p-9f, 0x1.4p-8f, 0x1.8p-16f, 0x1.4p-15f,
                     1.0625f,  1.125f,   1.1875f,  FLT_MAX,   FLT_MIN,   1e-45f}) {
    for (float sign : {1.0f, -1.0f}) {
      for (float x : {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, INFINITY)})
        values.push_back(sign * x);
    }
  }
  std::mt19937_64 generator(7);
  std::uniform_real_distribution<float> exponent(-20, 18);
  for (int64_t i = 0; i < random; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(generator())));
    values.push_back(std::exp2(exponent(generator)));
  }
  return values;
}

}  // namespace

// Sanitizers are ten times slower, and find what they look for in fewer.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kRandomPairs = 1'000'000;
#else
constexpr int64_t kRandomPairs = 10'000'000;
#endif

TEST_CASE("fp8: encoding agrees with the table on every BF16 value and twenty million floats") {
  const auto values = inputs(kRandomPairs);
  for (DType dtype : kFormats) {
    const Format& format = format_of(dtype);
    const TableEncoder table(dtype);
    int64_t wrong = 0;
    for (float x : values) wrong += encode(x, format) != table(x);
    CHECK(wrong == 0);
  }
}

TEST_CASE("fp8: decoding agrees with the table; every code survives a round trip and a trip through BF16") {
  for (DType dtype : kFormats) {
    const Format& format = format_of(dtype);
    const auto table = test::finite_values(dtype);
    for (int code = 0; code < 256; ++code) {
      INFO(name_of(dtype) << " code " << code);
      const float value = decode(static_cast<uint8_t>(code), format);
      const auto magnitude = static_cast<size_t>(code & 0x7f);
      if (magnitude < table.size()) {
        CHECK(std::fabs(value) == table[magnitude]);
        CHECK(std::signbit(value) == (code >= 0x80));
        CHECK(encode(value, format) == code);
        CHECK(static_cast<float>(bf16(value)) == value);
      } else if (dtype == DType::e5m2 && magnitude == 0x7c) {
        CHECK(std::isinf(value));
      } else {
        CHECK(std::isnan(value));
      }
    }
    CHECK(decode(format.max_code, format) == format.max);
  }
}

TEST_CASE("fp8: thresholds, signs and what is not a number") {
  const float inf = INFINITY, nan = NAN;
  struct Row {
    float x;
    int e4m3, e5m2;
  };
  for (Row row : std::initializer_list<Row>{{464, 0x7e, 0x5f},
                                            {464.01f, 0x7e, 0x5f},
                                            {61440, 0x7e, 0x7b},
                                            {inf, 0x7e, 0x7b},
                                            {-inf, 0xfe, 0xfb},
                                            {nan, 0x7f, 0x7f},
                                            {-nan, 0x7f, 0x7f},
                                            {0.0f, 0, 0},
                                            {-0.0f, 0x80, 0x80},
                                            {0x1p-10f, 0x00, 0x14},
                                            {0x1.000002p-10f, 0x01, 0x14},
                                            {0x1p-17f, 0x00, 0x00},
                                            {0x1.000002p-17f, 0x00, 0x01}}) {
    INFO(row.x);
    CHECK(encode(row.x, kE4M3) == row.e4m3);
    CHECK(encode(row.x, kE5M2) == row.e5m2);
  }
  CHECK_THROWS_WITH(format_of(DType::bf16), "[fp8] bf16 is not an FP8 format: expected e4m3 or e5m2");
}

TEST_CASE("fp8: the MX scale byte") {
  for (int code = 0; code < 255; ++code) {
    const float value = decode_e8m0(static_cast<uint8_t>(code));
    CHECK(static_cast<double>(value) == std::pow(2.0, code - 127));
    CHECK(encode_e8m0(value) == code);
  }
  CHECK(std::isnan(decode_e8m0(0xff)));
  for (float x : {0.0f, 3.0f, -2.0f, 1e-45f, INFINITY, NAN}) CHECK(encode_e8m0(x) == 0xff);
}

TEST_CASE("fp8: scale of any amax is finite, encodes it as the largest code, and its inverse is normal") {
  for (DType dtype : kFormats) {
    const Format& format = format_of(dtype);
    for (float amax :
         {0.0f, 1e-45f, 1e-38f, 1e-13f, 1e-12f, 1e-5f, 0.3f, 1.0f, 448.0f, 57344.0f, 1e30f, FLT_MAX}) {
      INFO(name_of(dtype) << " amax " << amax);
      const Scale plain = scale_from_amax(std::bit_cast<uint32_t>(amax), format);
      const Scale power =
          scale_from_amax(std::bit_cast<uint32_t>(amax), format, ScaleRounding::down_to_power_of_two);
      int exponent;
      for (const Scale& s : {plain, power}) {
        CHECK(s.finite);
        CHECK(std::isnormal(s.scale));
        CHECK(std::isnormal(s.inverse));
        CHECK(s.inverse == 1.0f / s.scale);
        CHECK(std::isfinite(amax * s.scale));
      }
      CHECK(std::frexp(power.scale, &exponent) == 0.5f);
      CHECK(power.scale <= plain.scale);
      CHECK(2 * power.scale > plain.scale);
      CHECK(power.scale * power.inverse == 1.0f);
      if (amax >= kSmallestAmax) CHECK(encode(amax * plain.scale, format) == format.max_code);
      if (amax >= kSmallestAmax) CHECK(static_cast<double>(amax) * power.scale <= format.max);
      if (amax == 0) CHECK(encode(amax * plain.scale, format) == 0);
    }
    for (uint32_t bits : {0x7f800000u, 0x7fc00000u, 0x7f800001u}) {
      const Scale s = scale_from_amax(bits, format);
      CHECK_FALSE(s.finite);
      CHECK(s.scale == 1.0f);
      CHECK(s.inverse == 1.0f);
    }
  }
  std::mt19937_64 generator(3);
  int64_t missed = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const float amax =
        std::bit_cast<float>(static_cast<uint32_t>(generator() % (0x7f000000u - 0x2c000000u) + 0x2c000000u));
    missed += encode(amax * scale_from_amax(std::bit_cast<uint32_t>(amax), kE4M3).scale, kE4M3) != 0x7e;
    missed += encode(amax * scale_from_amax(std::bit_cast<uint32_t>(amax), kE5M2).scale, kE5M2) != 0x7b;
  }
  CHECK(missed == 0);
  // The power of two is made without the division that defines it. Its mantissa's order decides, so that all
  // mantissas of one exponent are tried, and all exponents with those next to it.
  int64_t other = 0;
  const auto compare = [&](uint32_t bits) {
    for (const Format& format : {kE4M3, kE5M2}) {
      const Scale plain = scale_from_amax(bits, format),
                  power = scale_from_amax(bits, format, ScaleRounding::down_to_power_of_two);
      const float down = std::bit_cast<float>(std::bit_cast<uint32_t>(plain.scale) & 0xff800000u);
      other += power.scale != down || power.inverse != 1.0f / down;
    }
  };
  for (uint32_t bits = 0x3f000000u; bits < 0x40000000u; ++bits) compare(bits);
  for (uint32_t exponent = 0; exponent < 0xff; ++exponent) {
    for (uint32_t mantissa : {0x0u, 0x1u, 0x5fffffu, 0x600000u, 0x600001u, 0x7fffffu})
      compare(exponent << 23 | mantissa);
  }
  CHECK(other == 0);
}

TEST_CASE("fp8: the codec is that of the CUDA toolkit, bit for bit") {
#if defined(OTTAVA_CUDA_FP8_HEADER)
  const auto values = inputs(1'000'000);
  for (DType dtype : kFormats) {
    const Format& format = format_of(dtype);
    const auto kind = dtype == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;
    int64_t wrong = 0;
    for (float x : values) wrong += encode(x, format) != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
    CHECK(wrong == 0);
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<uint8_t>(code);
      const float theirs = __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, kind))),
                  ours = decode(byte, format);
      CHECK((theirs == ours || (std::isnan(theirs) && std::isnan(ours))));
    }
  }
#else
  test::skip("the toolkit's cuda_fp8.h was not found");
#endif
}
