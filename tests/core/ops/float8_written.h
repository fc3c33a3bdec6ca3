#pragma once

#include <array>
#include <bit>
#include <limits>

#include "core/float8/row_output.h"
#include "fp8/quantize.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

// What tests of operations that leave their output in FP8 share.
namespace ottava::test {

using namespace fp8;

/// All that a RowOutput writes.
struct Written {
  Written(Stream& stream, Granularity granularity, DType format, Shape shape)
      : bytes(stream, format, shape),
        inverse(stream, DType::f32, scale_shape(granularity, shape.rows(), shape.cols())),
        counters(stream, DType::i64, {3}),
        non_finite(stream, DType::u32, {1}),
        largest(stream, DType::u32, {1}),
        amax(stream, DType::u32, {1}),
        output{.granularity = granularity,
               .rounding = ScaleRounding::down_to_power_of_two,
               .out = {bytes, inverse},
               .counters = counters,
               .non_finite = non_finite,
               .largest = largest} {
    largest.upload_as<uint32_t>(std::array{0u});
    // The amax of an earlier step: some elements saturate.
    amax.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(0.75f)});
    if (granularity == Granularity::tensor) output.amax = amax;
    counters.upload_as<int64_t>(std::array<int64_t, 3>{0, 0, 0});
    non_finite.upload_as<uint32_t>(std::array{0u});
  }
  /// Whether the scale is made from the amax of another step, which knows nothing of what is in x now.
  bool is_scaled_before() const { return output.granularity == Granularity::tensor; }
  void same_as(const Written& other) const {
    CHECK((bytes.download_as<uint8_t>() == other.bytes.download_as<uint8_t>()));
    CHECK((inverse.download_as<float>() == other.inverse.download_as<float>()));
    CHECK(counters.download_as<int64_t>() == other.counters.download_as<int64_t>());
    CHECK(non_finite.download_as<uint32_t>() == other.non_finite.download_as<uint32_t>());
    CHECK(largest.download_as<uint32_t>() == other.largest.download_as<uint32_t>());
    CHECK(largest.download_as<uint32_t>()[0] != 0);
  }
  /// quantize() of x, which the fused operation is compared with.
  void quantize_from(Stream& stream, const Tensor& x) const {
    quantize(stream, {.x = x,
                      .granularity = output.granularity,
                      .rounding = output.rounding,
                      .amax = output.amax,
                      .out = output.out,
                      .counters = counters,
                      .non_finite = non_finite,
                      .largest = largest});
  }
  DeviceBuffer bytes, inverse, counters, non_finite, largest, amax;
  RowOutput output;
};

/// Values over many binades, so that rows and blocks differ and some elements underflow; a NaN in the last
/// row if asked for.
inline std::vector<float> spread(int64_t n, uint64_t seed, bool with_nan = false) {
  auto x = normal_values(n, seed);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i * 7919 % 23) - 14);
  if (with_nan) x.back() = std::numeric_limits<float>::quiet_NaN();
  return x;
}

/// Compares bits, so that NaNs count too.
inline bool same_bits(const DeviceBuffer& a, const DeviceBuffer& b) {
  const auto x = a.floats(), y = b.floats();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

}  // namespace ottava::test
