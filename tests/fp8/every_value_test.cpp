// Every bf16 value and every code through whole matrices, where elements share registers and tests for range,
// against the scalar definitions of core/float8/formats.h.
#include <array>
#include <bit>
#include <cmath>

#include "fp8/quantize.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

constexpr int64_t kRows = 256, kCols = 256;
const Shape kShape{kRows, kCols};

/// Value i of all, in steps that put neighbours into different rows and columns.
float value_of(int64_t i) { return std::bit_cast<float>(static_cast<uint32_t>(i * 40503 % 65536) << 16); }
bool is_in_range(float scaled, const Format& f) {
  return f.mantissa_bits == 3 ? std::fabs(scaled) <= f.overflow : std::fabs(scaled) < f.overflow;
}

/// Amaxes whose scales are of every kind: ordinary, the largest and the smallest, and what subnormal products
/// come from.
const float kAmaxes[] = {1.0f, 448.0f, 0.3711f, 1.37e-3f, 6.1e4f, 1e-12f, 3.1e38f, 0x1p90f};

struct Outputs {
  explicit Outputs(Stream& stream, Granularity granularity, DType format)
      : out(stream, format, kShape),
        transposed(stream, format, {kCols, kRows}),
        inverse(stream, DType::f32, scale_shape(granularity, kRows, kCols)),
        transposed_inverse(stream, DType::f32, scale_shape(granularity, kCols, kRows)),
        counters(stream, DType::i64, {3}) {
    counters.upload_as<int64_t>(std::array<int64_t, 3>{});
  }
  DeviceBuffer out, transposed, inverse, transposed_inverse, counters;
};

/// All values with scales from scale_of(column). With `stays_in_range` zeros stand for values that leave the
/// range.
struct Case {
  std::vector<float> values = std::vector<float>(kRows * kCols);
  std::vector<uint8_t> codes = std::vector<uint8_t>(kRows * kCols), transposed = codes;
  int64_t underflow = 0, saturation = 0;
  template <class ScaleOf>
  Case(const Format& f, bool stays_in_range, ScaleOf&& scale_of) {
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      const float scale = scale_of(i % kCols);
      float x = value_of(i);
      if (stays_in_range && !is_in_range(x * scale, f)) x = 0;
      const uint8_t code = encode(x * scale, f);
      values[static_cast<size_t>(i)] = x;
      codes[static_cast<size_t>(i)] = code;
      transposed[static_cast<size_t>(i % kCols * kRows + i / kCols)] = code;
      underflow += (code & 0x7f) == 0 && x != 0;
      saturation += !is_in_range(x * scale, f);
    }
  }
  std::vector<int64_t> counters() const { return {kRows * kCols, underflow, saturation}; }
};

/// The raw bits, NaN included: a conversion from float might change those.
std::vector<uint16_t> as_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float x : values) bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  return bits;
}

template <class Body>
void for_each_case(Body&& body) {
  for_each_device([&](Stream& stream) {
    for (DType format : {DType::e4m3, DType::e5m2}) {
      for (auto rounding : {ScaleRounding::none, ScaleRounding::down_to_power_of_two}) {
        for (bool stays : {false, true}) {
          INFO(name_of(format) << " power of two " << (rounding != ScaleRounding::none) << " in range "
                               << stays);
          body(stream, format, rounding, stays);
        }
      }
    }
  });
}

}  // namespace

TEST_CASE("quantize: every bf16 value with one scale is encode(x * scale), plain, transposed and counted") {
  for_each_case([](Stream& stream, DType format, ScaleRounding rounding, bool stays) {
    for (float amax : kAmaxes) {
      INFO("amax " << amax);
      const Format& f = format_of(format);
      const Scale scale = scale_from_amax(std::bit_cast<uint32_t>(amax), f, rounding);
      const Case want(f, stays, [&](int64_t) { return scale.scale; });
      DeviceBuffer x(stream, DType::bf16, kShape), amax_1(stream, DType::u32, {1});
      x.upload_as<uint16_t>(as_bf16(want.values));
      amax_1.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(amax)});
      Outputs both(stream, Granularity::tensor, format), plain(stream, Granularity::tensor, format),
          transposed(stream, Granularity::tensor, format);
      Quantize args{.x = x, .rounding = rounding, .amax = amax_1, .out = {both.out, both.inverse}};
      args.transposed = {both.transposed, both.transposed_inverse};
      args.counters = both.counters;
      quantize(stream, args);
      args.transposed = {};
      args.out = {plain.out, plain.inverse};
      args.counters = plain.counters;
      quantize(stream, args);
      args.out = {};
      args.transposed = {transposed.transposed, transposed.transposed_inverse};
      args.counters = transposed.counters;
      quantize(stream, args);
      CHECK(both.out.download_as<uint8_t>() == want.codes);
      CHECK(both.transposed.download_as<uint8_t>() == want.transposed);
      CHECK(plain.out.download_as<uint8_t>() == want.codes);
      CHECK(transposed.transposed.download_as<uint8_t>() == want.transposed);
      for (const Outputs* o : {&both, &plain, &transposed})
        CHECK(o->counters.download_as<int64_t>() == want.counters());
      for (const DeviceBuffer* inverse : {&both.inverse, &plain.inverse, &transposed.transposed_inverse}) {
        CHECK(inverse->floats()[0] == scale.inverse);
      }
    }
  });
}

TEST_CASE("quantize: every bf16 value with scales of its column is encode(x * scale), transposed") {
  for_each_case([](Stream& stream, DType format, ScaleRounding rounding, bool stays) {
    const Format& f = format_of(format);
    std::vector<uint32_t> amaxes;
    std::vector<float> scales;
    for (int64_t c = 0; c < kCols; ++c) {
      const float amax = kAmaxes[c % 8] * (1 + static_cast<float>(c) / 512);
      amaxes.push_back(std::bit_cast<uint32_t>(amax < 3.3e38f ? amax : 3.3e38f));
      scales.push_back(scale_from_amax(amaxes.back(), f, rounding).scale);
    }
    const Case want(f, stays, [&](int64_t c) { return scales[static_cast<size_t>(c)]; });
    DeviceBuffer x(stream, DType::bf16, kShape), columns(stream, DType::u32, {kCols});
    x.upload_as<uint16_t>(as_bf16(want.values));
    columns.upload_as<uint32_t>(amaxes);
    Outputs made(stream, Granularity::row, format);
    quantize(stream, {.x = x,
                      .granularity = Granularity::row,
                      .rounding = rounding,
                      .column_amax = columns,
                      .transposed = {made.transposed, made.transposed_inverse},
                      .counters = made.counters});
    CHECK(made.transposed.download_as<uint8_t>() == want.transposed);
    CHECK(made.counters.download_as<int64_t>() == want.counters());
    const auto inverses = made.transposed_inverse.floats();
    for (int64_t c = 0; c < kCols; ++c) {
      REQUIRE(inverses[static_cast<size_t>(c)] == 1.0f / scales[static_cast<size_t>(c)]);
    }
  });
}

TEST_CASE("dequantize: every code times inverses of every kind, among numbers and among NaN") {
  for_each_device([](Stream& stream) {
    const float inverses[] = {1.0f, 0x1p-8f, 0.00317f, 0x1p-110f, 1.7e-35f, 0x1p110f, 3.3e33f, 0x1p99f};
    constexpr int64_t kCodes = 512;
    for (DType format : {DType::e4m3, DType::e5m2}) {
      for (bool with_nan : {false, true}) {
        std::vector<uint8_t> codes;
        for (size_t i = 0; i < 8 * kCodes; ++i) {
          const auto code = static_cast<uint8_t>(i);
          const bool is_nan = std::isnan(decode(code, format_of(format)));
          codes.push_back(is_nan && !with_nan ? uint8_t{0x80} : code);
        }
        DeviceBuffer bytes(stream, format, {8, kCodes}), scales(stream, DType::f32, {8}, inverses);
        bytes.upload_as<uint8_t>(codes);
        for (DType dtype : {DType::f32, DType::bf16}) {
          INFO(name_of(format) << " to " << name_of(dtype) << " NaN " << with_nan);
          DeviceBuffer y(stream, dtype, {8, kCodes});
          dequantize(stream, {bytes, scales}, Granularity::row, y);
          const auto got = y.floats();
          int64_t wrong = 0;
          for (size_t i = 0; i < got.size(); ++i) {
            float want = decode(codes[i], format_of(format)) * inverses[i / kCodes];
            if (dtype == DType::bf16) want = static_cast<float>(bf16(want));
            const bool same = std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want);
            wrong += !(same || (std::isnan(got[i]) && std::isnan(want)));
          }
          CHECK(wrong == 0);
        }
      }
    }
  });
}
