#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/dtype.h"

// FP8 a second time, from the tables of the formats and in double: shares nothing with the code under test.
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

/// Nearest in the table; of two equally near ones that with the even code; past the end the last.
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

}  // namespace ottava::test
