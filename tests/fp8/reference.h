#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/float8/granularity.h"

// A second implementation of FP8, from the tables of the formats and in double; it shares nothing with the
// code under test.
namespace ottava::test {

/// Values of the codes 0x00 .. largest finite, in order, by the definition of the format.
inline std::vector<double> finite_values(DType format) {
  const bool e4m3 = format == DType::e4m3;
  const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, codes = e4m3 ? 127 : 124;
  std::vector<double> values;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    const double significand = (exponent > 0 ? 1.0 : 0.0) + fraction / std::pow(2.0, mantissa);
    values.push_back(significand * std::pow(2.0, std::max(exponent, 1) - bias));
  }
  return values;
}

/// The code of the nearest value in the table: of two equally near ones the even code, past the end the last.
class TableEncoder {
 public:
  explicit TableEncoder(DType format) : values_(finite_values(format)) {}
  uint8_t operator()(float x) const {
    if (std::isnan(x)) return 0x7f;
    const double magnitude = std::fabs(static_cast<double>(x));
    const int sign = std::signbit(x) ? 0x80 : 0;
    auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return static_cast<uint8_t>(sign | static_cast<int>(values_.size() - 1));
    int code = static_cast<int>(above - values_.begin());
    if (code > 0) {
      const double up = values_[static_cast<size_t>(code)] - magnitude;
      const double down = magnitude - values_[static_cast<size_t>(code - 1)];
      if (down < up || (down == up && (code - 1) % 2 == 0)) --code;
    }
    return static_cast<uint8_t>(sign | code);
  }

 private:
  std::vector<double> values_;
};

/// The scale by the formula, its division in double: that rounds to the same float.
inline float reference_scale(double amax, DType format, bool power_of_two) {
  const double max = format == DType::e4m3 ? 448 : 57344;
  const auto scale = static_cast<float>(max / std::max(amax, static_cast<double>(1e-12f)));
  return power_of_two ? static_cast<float>(std::exp2(std::floor(std::log2(static_cast<double>(scale)))))
                      : scale;
}

/// Codes and, per element, the inverse scale of a matrix of bf16 values.
struct ReferenceQuantized {
  std::vector<uint8_t> codes;
  std::vector<float> inverses;
  int64_t underflow = 0, saturation = 0;
};
struct ReferenceRecipe {
  DType format = DType::e4m3;
  fp8::Granularity granularity = fp8::Granularity::tensor;
  bool power_of_two = false;
};
inline ReferenceQuantized reference_quantize(const std::vector<float>& x, int64_t rows, int64_t cols,
                                             ReferenceRecipe recipe) {
  using fp8::Granularity;
  int64_t high = rows, wide = cols;  // of a group
  if (recipe.granularity != Granularity::tensor)
    high = recipe.granularity == Granularity::block_128x128 ? 128 : 1;
  if (recipe.granularity == Granularity::block_1x128 || recipe.granularity == Granularity::block_128x128)
    wide = 128;
  if (recipe.granularity == Granularity::block_1x32) wide = 32;
  const TableEncoder encode(recipe.format);
  ReferenceQuantized q;
  q.codes.resize(x.size());
  q.inverses.resize(x.size());
  for (int64_t r0 = 0; r0 < rows; r0 += high) {
    for (int64_t c0 = 0; c0 < cols; c0 += wide) {
      auto each = [&](auto&& body) {
        for (int64_t r = r0; r < std::min(r0 + high, rows); ++r) {
          for (int64_t c = c0; c < std::min(c0 + wide, cols); ++c) body(static_cast<size_t>(r * cols + c));
        }
      };
      double amax = 0;
      each([&](size_t i) { amax = std::max(amax, std::fabs(static_cast<double>(x[i]))); });
      const float scale = reference_scale(amax, recipe.format, recipe.power_of_two);
      each([&](size_t i) {
        const float scaled = x[i] * scale;
        q.codes[i] = encode(scaled);
        q.inverses[i] = 1.0f / scale;
        q.underflow += (q.codes[i] & 0x7f) == 0 && x[i] != 0;
        q.saturation += recipe.format == DType::e4m3 ? std::fabs(scaled) > 464 : std::fabs(scaled) >= 61440;
      });
    }
  }
  return q;
}

template <class T>
std::vector<T> transposed(const std::vector<T>& x, int64_t rows, int64_t cols) {
  std::vector<T> y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      y[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
  }
  return y;
}

}  // namespace ottava::test
