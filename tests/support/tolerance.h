#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "tests/support/catch.h"

// How far a result may be from its FP64 reference, derived and never tuned. Every rounding of a format with p
// significand bits errs by at most 2^-p of the value. An operation is then described by how it was computed:
//
//     |got - want| <= stored * |want| + arithmetic * magnitude
//
// `stored` is the rounding of the result itself, `arithmetic` that of the f32 operations on the way, and
// `magnitude` the sum of the absolute values of the terms that were added: cancellation cannot hide in it.
namespace ottava::test {

/// 2^-p: the relative error of rounding to nearest.
constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::e4m3:
      return 0x1p-4;
    case DType::e5m2:
      return 0x1p-3;
    default:
      return 0;
  }
}

/// The relative error of a sum of n terms in `dtype`, whatever its order: rounding errors of a sum behave
/// like a random walk and stay below lambda sqrt(n) u (Higham and Mary, doi:10.1137/18M1226312); lambda = 6
/// fails once in 10^7.
inline double sum_roundoff(int64_t terms, DType dtype = DType::f32) {
  return 6 * std::sqrt(static_cast<double>(terms) + 1) * unit_roundoff(dtype);
}

struct Tolerance {
  double stored = 0;      ///< times |want|
  double arithmetic = 0;  ///< times magnitude
};

/// A result of `operations` f32 roundings and sums over `terms` elements, stored as `dtype`.
inline Tolerance tolerance(DType dtype, int operations, int64_t terms = 0) {
  return {.stored = unit_roundoff(dtype),
          .arithmetic = operations * unit_roundoff(DType::f32) + sum_roundoff(terms)};
}

/// Checks every element and names the worst one. `magnitude` may be left out: |want| is taken. A NaN where a
/// number is expected fails, and so does a number where a NaN is.
inline void check_close(std::span<const float> got, std::span<const double> want, Tolerance t,
                        std::span<const double> magnitude = {}) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    bool both_nan = std::isnan(got[i]) && std::isnan(want[i]);
    double size = magnitude.empty() ? std::abs(want[i]) : magnitude[i];
    // Below the smallest normal number the spacing is absolute.
    double allowed = t.stored * std::abs(want[i]) + t.arithmetic * size + 0x1p-126;
    double ratio = both_nan || got[i] == want[i] ? 0 : std::abs(got[i] - want[i]) / allowed;
    if (!(ratio <= worst)) {
      worst = std::isnan(ratio) ? INFINITY : ratio;
      at = i;
    }
  }
  if (got.empty()) return;
  INFO("worst element " << at << " of " << got.size() << ": got " << got[at] << ", want " << want[at]);
  CHECK(worst <= 1.0);
}

/// Central differences of loss(x) in double against an analytic gradient. The step balances truncation (h^2)
/// against cancellation (u/h) at h = u^(1/3), which leaves u^(2/3) = 2.3e-11 of the loss's scale; 1e3 of that
/// is allowed.
template <class Loss>
void check_gradient(Loss&& loss, std::vector<double> x, std::span<const double> gradient) {
  REQUIRE(x.size() == gradient.size());
  double scale = std::abs(loss(x)) + 1;
  for (double g : gradient) scale = std::max(scale, std::abs(g));
  for (size_t i = 0; i < x.size(); ++i) {
    double centre = x[i], h = 6e-6 * std::max(1.0, std::abs(centre));
    x[i] = centre + h;
    double above = loss(x);
    x[i] = centre - h;
    double below = loss(x);
    x[i] = centre;
    INFO("element " << i);
    CHECK(std::abs((above - below) / (2 * h) - gradient[i]) <= 2.3e-8 * scale);
  }
}

}  // namespace ottava::test
