#include "core/initialise.h"

#include <bit>
#include <cmath>
#include <initializer_list>

#include "core/philox.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

// ln x for normal x > 0 by ln m = 2 artanh((m-1)/(m+1)), m in [sqrt(1/2), sqrt(2)): a library's log may
// differ in its last bit between machines, and initial weights must not.
double portable_log(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return 2 * t * sum + exponent * 0.69314718055994530942;
}

// Horner's rule, the highest power's coefficient first.
double polynomial(std::initializer_list<double> coefficients, double x) {
  double sum = 0;
  for (double c : coefficients) sum = sum * x + c;
  return sum;
}

double tail(double q) {
  return polynomial({-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                     -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00},
                    q) /
         polynomial({7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                     3.754408661907416e+00, 1.0},
                    q);
}

// FNV-1a: which of Philox's streams belongs to a tensor.
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : name) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

// Phi(x) for the bounds of a truncated normal, by its Taylor series around 0 (|x| <= 8 converges in double).
double normal_cdf(double x) {
  double term = x, sum = x;
  for (int k = 1; k < 400; ++k) {
    term *= x * x / (2 * k + 1);
    sum += term;
  }
  // exp(-x^2/2) by repeated squaring of a short series: portable, and evaluated once per tensor.
  double y = -x * x / 2 / 1024, e = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5))));
  for (int i = 0; i < 10; ++i) e *= e;
  return 0.5 + 0.3989422804014327 * e * sum;
}

}  // namespace

double inverse_normal(double p) {
  constexpr double kLow = 0.02425;
  if (p < kLow) return tail(std::sqrt(-2 * portable_log(p)));
  if (p > 1 - kLow) return -tail(std::sqrt(-2 * portable_log(1 - p)));
  double q = p - 0.5, r = q * q;
  return polynomial({-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                     1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00},
                    r) *
         q /
         polynomial({-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                     6.680131188771972e+01, -1.328068155288572e+01, 1.0},
                    r);
}

void fill_normal(float* out, int64_t first, int64_t count, const NormalInitialisation& how) {
  PhiloxStream random{how.seed, stream_of(how.name)};
  double low = how.cut > 0 ? normal_cdf(-how.cut) : 0.0;
  double width = 1 - 2 * low;
  parallel_for_index(count, 4096, [&](int64_t i) {
    double u = random.uniform(first + i);
    out[i] = static_cast<float>(how.std * inverse_normal(low + width * u));
  });
}

}  // namespace ottava
