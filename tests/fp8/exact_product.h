#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ottava::test {

using Values = std::vector<double>;

/// A product and the sums of the absolute values of its terms, which rounding errors are measured by.
struct Product {
  Values value, magnitude;
};
/// a [m,k] b [n,k]^T in FP64.
inline Product exact_product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k) {
  Product p{Values(static_cast<size_t>(m * n)), Values(static_cast<size_t>(m * n))};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t l = 0; l < k; ++l) {
        const double term = a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(j * k + l)];
        sum += term, magnitude += std::abs(term);
      }
      p.value[static_cast<size_t>(i * n + j)] = sum;
      p.magnitude[static_cast<size_t>(i * n + j)] = magnitude;
    }
  }
  return p;
}

}  // namespace ottava::test
