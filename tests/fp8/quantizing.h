#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "fp8/quantize.h"
#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

// What tests of quantize() share: arguments for every way that it offers, and what came of them.
namespace ottava::test {

using namespace ottava::fp8;

inline constexpr Granularity kGranularities[] = {Granularity::tensor, Granularity::row,
                                                 Granularity::block_1x128, Granularity::block_128x128,
                                                 Granularity::block_1x32};
struct Size {
  int64_t rows, cols;
};
// One element, below a vector, ragged in both directions, whole tiles, one past them, parts of tiles in whole
// vectors, rows longer than a piece of blocks.
inline constexpr Size kSizes[] = {{1, 1},     {3, 7},    {16, 16},  {33, 50},  {129, 257}, {260, 40},
                                  {144, 304}, {3, 2600}, {2, 4200}, {2, 9008}, {1, 16500}};

/// Values over many binades, with zeros, so that groups differ and some elements underflow.
inline std::vector<float> spread_values(int64_t n, uint64_t seed) {
  auto x = normal_values(n, seed);
  std::mt19937_64 generator(seed + 99);
  for (float& v : x) {
    v *= std::exp2(static_cast<float>(generator() % 24) - 12);
    if (generator() % 50 == 0) v = 0;
    v = static_cast<float>(bf16(v));
  }
  return x;
}

/// What quantize() made, on the host.
struct Made {
  Made(Stream& stream, ReferenceRecipe recipe, Shape shape)
      : granularity(recipe.granularity),
        bytes(stream, recipe.format, shape),
        inverse(stream, scale_dtype(granularity), scale_shape(granularity, shape.rows(), shape.cols())) {}
  Float8Codes view() const { return {bytes, inverse}; }
  std::vector<uint8_t> codes() const { return bytes.download_as<uint8_t>(); }
  /// Inverse scales as stored, padding included.
  std::vector<uint32_t> raw_inverses() const {
    if (granularity != Granularity::block_1x32) {
      std::vector<uint32_t> bits;
      for (float x : inverse.download_as<float>()) bits.push_back(std::bit_cast<uint32_t>(x));
      return bits;
    }
    const auto bytes = inverse.download_as<uint8_t>();
    return {bytes.begin(), bytes.end()};
  }
  /// The inverse scale of each element.
  std::vector<float> inverses() const {
    std::vector<float> all;
    const Shape shape = bytes.tensor().shape;
    const bool mx = granularity == Granularity::block_1x32;
    const auto e8m0 = mx ? inverse.download_as<uint8_t>() : std::vector<uint8_t>{};
    const auto f32 = mx ? std::vector<float>{} : inverse.download_as<float>();
    for (int64_t r = 0; r < shape.rows(); ++r) {
      for (int64_t c = 0; c < shape.cols(); ++c) {
        const auto i = static_cast<size_t>(scale_index(granularity, shape, r, c));
        all.push_back(mx ? decode_e8m0(e8m0[i]) : f32[i]);
      }
    }
    return all;
  }
  Granularity granularity;
  DeviceBuffer bytes, inverse;
};

inline ScaleRounding rounding_of(ReferenceRecipe recipe) {
  return recipe.power_of_two ? ScaleRounding::down_to_power_of_two : ScaleRounding::none;
}

/// The judge of codes and scales: both exactly as the reference makes them from x. The mutations in
/// quantize_test.cpp must not pass it.
inline bool is_exactly(const ReferenceQuantized& want, const std::vector<uint8_t>& codes,
                       const std::vector<float>& inverses) {
  return codes == want.codes && inverses == want.inverses;
}

/// The arguments that quantize x both as it is and transposed, and the memory of all that is written.
struct Quantizing {
  Quantizing(Stream& stream, const std::vector<float>& values, Size size, ReferenceRecipe recipe, DType dtype)
      : x(stream, dtype, {size.rows, size.cols}, values),
        out(stream, recipe, {size.rows, size.cols}),
        transposed(stream, recipe, {size.cols, size.rows}),
        amax_1(stream, DType::u32, {1}),
        columns(stream, DType::u32, {size.cols}),
        counters(stream, DType::i64, {3}),
        non_finite(stream, DType::u32, {1}),
        largest(stream, DType::u32, {1}),
        args{.x = x,
             .granularity = recipe.granularity,
             .rounding = rounding_of(recipe),
             .out = out.view(),
             .transposed = transposed.view(),
             .counters = counters,
             .non_finite = non_finite,
             .largest = largest} {
    largest.upload_as<uint32_t>(std::array{0u});
    amax_1.upload_as<uint32_t>(std::array{0u});
    columns.upload_as<uint32_t>(std::vector<uint32_t>(static_cast<size_t>(size.cols), 0u));
    counters.upload_as<int64_t>(std::array<int64_t, 3>{0, 0, 0});
    non_finite.upload_as<uint32_t>(std::array{0u});
    if (recipe.granularity == Granularity::tensor) {
      fp8::amax(stream, x, amax_1);
      args.amax = amax_1;
    }
    if (recipe.granularity == Granularity::row) {
      fp8::column_amax(stream, x, columns);
      args.column_amax = columns;
    }
  }
  DeviceBuffer x;
  Made out, transposed;
  DeviceBuffer amax_1, columns, counters, non_finite, largest;
  Quantize args;
};

template <class Body>
void for_each_recipe(Body&& body) {
  for (Granularity granularity : kGranularities) {
    for (DType format : {DType::e4m3, DType::e5m2}) {
      for (bool power_of_two : {false, true}) {
        if (granularity == Granularity::block_1x32 && !power_of_two) continue;
        INFO(name_of(granularity) << " " << name_of(format) << " power of two " << power_of_two);
        body(ReferenceRecipe{format, granularity, power_of_two});
      }
    }
  }
}

}  // namespace ottava::test
