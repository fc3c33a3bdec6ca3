#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/core/cpu/vec_probe.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ottava;

namespace {

std::vector<float> of(test::VecProbe::OfArray* function, const std::vector<float>& x) {
  std::vector<float> y(x.size(), -1.0f);
  function(x.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}
std::vector<float> exp_of(const std::vector<float>& x) { return of(cpu::vec_probe().exp, x); }

/// Distance from the exact value in units of the result's last place.
double ulps(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(got - want) / std::ldexp(1.0, exponent - 24);
}

}  // namespace

TEST_CASE("exp is within 2 ulp wherever its result is a normal number") {
  // Every 997th float of either sign: 600,000 of them, all magnitudes down to 2^-30.
  std::vector<float> x;
  for (uint32_t bits = std::bit_cast<uint32_t>(0x1p-30f); bits < std::bit_cast<uint32_t>(88.0f);
       bits += 997) {
    x.push_back(std::bit_cast<float>(bits));
    if (x.back() <= 87) x.push_back(-std::bit_cast<float>(bits));
  }
  std::vector<float> y = exp_of(x);
  double worst = 0;
  float at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double error = ulps(y[i], std::exp(static_cast<double>(x[i])));
    if (!(error <= worst)) {
      worst = error;
      at = x[i];
    }
  }
  INFO("worst " << worst << " ulp at " << at);
  CHECK(worst <= 2);
  CHECK(x.size() > 400000);
}

TEST_CASE("exp at its borders: 0 below, infinity above, 1 at 0, NaN kept") {
  const float infinity = std::numeric_limits<float>::infinity();
  auto y = exp_of({0.0f, -0.0f, -87.4f, -1e30f, -infinity, 88.72f, 88.73f, 1e30f, infinity,
                   std::numeric_limits<float>::quiet_NaN()});
  CHECK(y[0] == 1.0f);
  CHECK(y[1] == 1.0f);
  CHECK(y[2] == 0.0f);
  CHECK(y[3] == 0.0f);
  CHECK(y[4] == 0.0f);
  CHECK(ulps(y[5], std::exp(static_cast<double>(88.72f))) <= 2);
  CHECK(y[6] == infinity);
  CHECK(y[7] == infinity);
  CHECK(y[8] == infinity);
  CHECK(std::isnan(y[9]));
}

TEST_CASE("exp2 is within 4 ulp, and for bf16 within 3e-6, wherever its result is a normal number") {
  std::vector<float> x = {0.0f, -0.0f, -126.0f, 127.0f, 0.5f, -0.5f, 0x1p-149f, -0x1p-149f, -0x1p-24f};
  for (int i = -126 * 4096; i < 127 * 4096; ++i) x.push_back(static_cast<float>(i) * (1 + 0x1p-20f) / 4096);
  const std::vector<float> y = of(cpu::vec_probe().exp2, x), z = of(cpu::vec_probe().exp2_for_bf16, x);
  double worst = 0, worst_for_bf16 = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp2(std::max(static_cast<double>(x[i]), -126.0));
    worst = std::max(worst, ulps(y[i], want));
    if (x[i] >= -126) worst_for_bf16 = std::max(worst_for_bf16, std::abs(z[i] / want - 1));
  }
  INFO(worst << " ulp, " << worst_for_bf16);
  CHECK(worst <= 4);
  CHECK(worst_for_bf16 <= 3e-6);
  CHECK(y[0] == 1.0f);
}

TEST_CASE("exp2 has the same bits with every set that has fused multiply-adds") {
  if (cpu::isa() < cpu::Isa::avx2) return test::skip("this set has no fused multiply-adds");
  std::vector<float> x;
  for (int i = -126 * 512; i < 127 * 512; ++i) x.push_back(static_cast<float>(i) * (1 + 0x1p-19f) / 512);
  const std::vector<float> y = of(cpu::vec_probe().exp2, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float at = std::max(x[i], -126.0f), n = std::nearbyint(at), r = at - n;
    float p = 0.00133813021f;
    for (float c : {0.00966636837f, 0.0555038117f, 0.240223497f, 0.693147182f, 1.0f}) p = std::fma(p, r, c);
    if (y[i] != std::ldexp(p, static_cast<int>(n))) FAIL("at " << x[i] << ": " << y[i]);
  }
  CHECK(x.size() > 100000);
}

TEST_CASE("exp2 at its borders: negligible below, NaN kept") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (auto* function : {cpu::vec_probe().exp2, cpu::vec_probe().exp2_for_bf16}) {
    const auto y = of(function, {-126.5f, -1e30f, -infinity, std::numeric_limits<float>::quiet_NaN()});
    for (size_t i = 0; i < 3; ++i) CHECK((y[i] >= 0 && y[i] <= 0x1.00004p-126f));
    CHECK(std::isnan(y[3]));
  }
}

TEST_CASE("sums and maxima over the lanes of a vector see every lane") {
  for (size_t lane = 0; lane < 16; ++lane) {
    std::vector<float> x(16, -1.0f);
    x[lane] = 3.0f;
    CHECK(cpu::vec_probe().sum(x.data()) == 3.0f - 15.0f);
    CHECK(cpu::vec_probe().max(x.data()) == 3.0f);
  }
}

TEST_CASE("lanes change places and are taken in turns as their names say") {
  std::vector<uint32_t> a(16), b(16), out(8 * 16);
  for (uint32_t i = 0; i < 16; ++i) a[i] = i, b[i] = 100 + i;
  cpu::vec_probe().shuffles(a.data(), b.data(), out.data());
  for (uint32_t i = 0; i < 16; ++i) {
    INFO("lane " << i);
    for (uint32_t power = 0; power < 4; ++power) CHECK(out[power * 16 + i] == (i ^ (1u << power)));
    const uint32_t source = i % 2 * 100, pair_source = i / 2 % 2 * 100, pair = i / 4 * 2 + i % 2;
    CHECK(out[4 * 16 + i] == source + i / 2);
    CHECK(out[5 * 16 + i] == source + 8 + i / 2);
    CHECK(out[6 * 16 + i] == pair_source + pair);
    CHECK(out[7 * 16 + i] == pair_source + 8 + pair);
  }
}

TEST_CASE("narrow lanes keep the low bits of wide ones, whatever is above them") {
  std::vector<uint32_t> a(16), out(2 * 16);
  for (uint32_t i = 0; i < 16; ++i) a[i] = 0x89abcdefu * (i + 1);
  cpu::vec_probe().narrowed(a.data(), out.data());
  for (size_t i = 0; i < 16; ++i) {
    CHECK(out[i] == (a[i] & 0xffffu));
    CHECK(out[16 + i] == (a[i] & 0xffu));
  }
}

TEST_CASE("sums in f64, square roots and the end of a row see every lane") {
  std::vector<float> x(16), y(16);
  double sum = 0;
  for (size_t i = 0; i < 16; ++i) {
    x[i] = 1.0f + static_cast<float>(i) * 0x1p-20f;
    sum += static_cast<double>(x[i]);
  }
  CHECK(cpu::vec_probe().wide_sum(x.data()) == sum);
  cpu::vec_probe().roots(x.data(), y.data());
  for (size_t i = 0; i < 16; ++i) CHECK(y[i] == std::sqrt(x[i]));
  for (size_t count = 0; count < 16; ++count) {
    cpu::vec_probe().kept(x.data(), static_cast<int>(count), y.data());
    for (size_t i = 0; i < 16; ++i) CHECK(y[i] == (i < count ? x[i] : 7.0f));
  }
}
