#include "core/optim/adamw.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "core/cost.h"
#include "core/philox.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr float kLr = 3e-3f;
constexpr uint64_t kSeed = 0x1234567890abcdefu, kKey = 0xfedcba9876543210u;
constexpr int64_t kStep = 5;

std::vector<float> step_scalars(float factor) {
  std::vector<float> s(kStepScalars, 1.0f);
  s[kLearningRate] = kLr;
  s[kGradientFactor] = factor;
  return s;
}

/// The corrections of the `step`-th update since the moments were zero.
std::vector<float> bias_correction(int64_t step) {
  return {static_cast<float>(1 - std::pow(0.9f, step)), static_cast<float>(1 - std::pow(0.95f, step))};
}

/// One parameter and what belongs to it, on a device.
struct Parameter {
  Parameter(Stream& stream, int64_t n, DType states, DType compute_type, uint64_t seed = 1)
      : master(stream, DType::f32, {n}, normal_values(n, seed)),
        gradient(stream, DType::f32, {n}, normal_values(n, seed + 1, DType::f32, 0.1f)),
        exp_avg(stream, states, {n}, normal_values(n, seed + 2, DType::bf16, 0.05f)),
        exp_avg_sq(stream, states, {n}, squares(n, seed + 3)),
        compute(stream, compute_type, {n}),
        corrections(stream, DType::f32, {2}, bias_correction(kStep)),
        amax(stream, DType::u32, {1}) {
    amax.upload_as<uint32_t>(std::array{0u});
  }
  static std::vector<float> squares(int64_t n, uint64_t seed) {
    auto values = normal_values(n, seed, DType::bf16, 0.1f);
    for (float& x : values) x = static_cast<float>(bf16(x * x));
    return values;
  }
  AdamwTensor tensor() const {
    return {.master = master,
            .gradient = gradient,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .compute = compute,
            .bias_correction = corrections,
            .amax = amax,
            .weight_decay = 0.1f,
            .key = kKey};
  }
  /// Elements [begin, end) as a shard of their own.
  AdamwTensor shard(int64_t begin, int64_t end) const {
    AdamwTensor t = tensor();
    for (Tensor* part : {&t.master, &t.gradient, &t.exp_avg, &t.exp_avg_sq, &t.compute})
      *part = part->slice(begin, end);
    t.first_element = begin;
    return t;
  }
  /// All bits that the step may change.
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> all = amax.download_as<uint32_t>();
    for (const DeviceBuffer* b : {&master, &exp_avg, &exp_avg_sq, &compute}) {
      for (float x : b->floats()) all.push_back(std::bit_cast<uint32_t>(x));
    }
    return all;
  }

  DeviceBuffer master, gradient, exp_avg, exp_avg_sq, compute, corrections, amax;
};

void step(Stream& stream, const std::vector<AdamwTensor>& tensors, float factor = 0.5f) {
  DeviceBuffer scalars(stream, DType::f32, {kStepScalars}, step_scalars(factor)), t(stream, DType::i64, {1});
  t.upload_as<int64_t>(std::array{kStep});
  adamw(stream, tensors, {.seed = kSeed}, scalars, t);
}

struct Expected {
  std::vector<double> m, m_size, v, p, p_size;
};
Expected reference(const Parameter& x, float factor, double lr) {
  const double beta1 = 0.9f, beta2 = 0.95f;
  const std::vector<float> c = x.corrections.floats();
  auto p = x.master.floats(), g = x.gradient.floats(), m = x.exp_avg.floats(), v = x.exp_avg_sq.floats();
  Expected r;
  for (size_t i = 0; i < p.size(); ++i) {
    const double gradient = static_cast<double>(g[i]) * factor;
    r.m.push_back(beta1 * m[i] + (1 - beta1) * gradient);
    r.m_size.push_back(beta1 * std::abs(m[i]) + (1 - beta1) * std::abs(gradient));
    r.v.push_back(beta2 * v[i] + (1 - beta2) * gradient * gradient);
    const double root = std::sqrt(r.v[i] / c[1]) + 1e-8f, decay = 0.1f;
    r.p.push_back(p[i] - lr * (r.m[i] / c[0] / root + decay * p[i]));
    r.p_size.push_back(std::abs(p[i]) + lr * (r.m_size[i] / c[0] / root + decay * std::abs(p[i])));
  }
  return r;
}

}  // namespace

TEST_CASE("adamw agrees with the formula in FP64") {
  for_each_device_and_dtype([](Stream& stream, DType compute) {
    for (int64_t n : {1, 15, 16, 1000, 20000}) {
      for (float lr_factor : {1.0f, 0.25f}) {
        INFO("n " << n << " lr_factor " << lr_factor);
        Parameter x(stream, n, DType::f32, compute);
        Expected want = reference(x, 0.5f, static_cast<double>(kLr) * lr_factor);
        AdamwTensor tensor = x.tensor();
        tensor.lr_factor = lr_factor;
        step(stream, {tensor});
        check_close(x.exp_avg.floats(), want.m, tolerance(DType::f32, 4), want.m_size);
        check_close(x.exp_avg_sq.floats(), want.v, tolerance(DType::f32, 5));
        check_close(x.master.floats(), want.p, tolerance(DType::f32, 12), want.p_size);
        auto p = x.master.floats();
        for (float& v : p) v = compute == DType::bf16 ? static_cast<float>(bf16(v)) : v;
        CHECK(x.compute.floats() == p);
        for (float& v : p) v = static_cast<float>(bf16(v));
        CHECK(x.amax.download_as<uint32_t>()[0] == largest_bits(p));
      }
    }
  });
}

TEST_CASE("adamw: each tensor is corrected by the number of its own updates") {
  for_each_device([](Stream& stream) {
    Parameter old(stream, 1000, DType::f32, DType::bf16), fresh(stream, 1000, DType::f32, DType::bf16);
    fresh.corrections.upload(bias_correction(1));
    const Expected want_old = reference(old, 0.5f, kLr), want_fresh = reference(fresh, 0.5f, kLr);
    step(stream, {old.tensor(), fresh.tensor()});
    check_close(old.master.floats(), want_old.p, tolerance(DType::f32, 12), want_old.p_size);
    check_close(fresh.master.floats(), want_fresh.p, tolerance(DType::f32, 12), want_fresh.p_size);
    CHECK(fresh.exp_avg.floats() == old.exp_avg.floats());
    CHECK(fresh.master.floats() != old.master.floats());
  });
}

TEST_CASE("adamw without compute moves the same weights and tells the same amax") {
  for_each_device([](Stream& stream) {
    Parameter with(stream, 1000, DType::f32, DType::bf16), without(stream, 1000, DType::f32, DType::bf16);
    step(stream, {with.tensor()});
    AdamwTensor tensor = without.tensor();
    tensor.compute = {};
    step(stream, {tensor});
    CHECK(without.master.floats() == with.master.floats());
    CHECK(without.amax.download_as<uint32_t>() == with.amax.download_as<uint32_t>());
  });
}

TEST_CASE("adamw: bf16 states are cut after adding the element's own random threshold") {
  for_each_device([](Stream& stream) {
    // The last crosses 2^32 Philox blocks.
    for (int64_t first : {int64_t{0}, int64_t{3}, (int64_t{1} << 34) - 1500}) {
      INFO("first element " << first);
      const int64_t n = 3001;
      Parameter exact(stream, n, DType::f32, DType::bf16), rounded(stream, n, DType::bf16, DType::bf16);
      AdamwTensor tensor = rounded.tensor();
      tensor.first_element = first;
      step(stream, {exact.tensor()});
      step(stream, {tensor});
      CHECK(rounded.master.floats() == exact.master.floats());
      auto m = exact.exp_avg.floats(), v = exact.exp_avg_sq.floats();
      const PhiloxStream random{kSeed, kKey + uint64_t{kStep} * 0x9E3779B97F4A7C15u};
      std::vector<uint16_t> want_m, want_v;
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t e = static_cast<uint64_t>(first + i);
        const uint32_t word = random.bits(e / 4)[e % 4];
        want_m.push_back(static_cast<uint16_t>(
            (std::bit_cast<uint32_t>(m[static_cast<size_t>(i)]) + (word & 0xffffu)) >> 16));
        want_v.push_back(
            static_cast<uint16_t>((std::bit_cast<uint32_t>(v[static_cast<size_t>(i)]) + (word >> 16)) >> 16));
      }
      CHECK(rounded.exp_avg.download_as<uint16_t>() == want_m);
      CHECK(rounded.exp_avg_sq.download_as<uint16_t>() == want_v);
    }
  });
}

TEST_CASE(
    "adamw: stochastic rounding is right on average: a mean that nearest rounding would freeze still moves") {
  for_each_device([](Stream& stream) {
    // m = 0.9 * 1 + 0.1 * 1.01 = 1.001, an eighth of bf16's spacing above 1: rounded up in 12.8% of the
    // elements.
    const int64_t n = 100000;
    Parameter x(stream, n, DType::bf16, DType::bf16);
    x.exp_avg.upload(std::vector<float>(n, 1.0f));
    x.gradient.upload(std::vector<float>(n, 1.01f));
    step(stream, {x.tensor()}, 1.0f);
    double mean = 0;
    for (float m : x.exp_avg.floats()) {
      CHECK((m == 1.0f || m == 1.0078125f));
      mean += m / n;
    }
    const double deviation = 0.0078125 * std::sqrt(0.128 * 0.872 / n);
    CHECK(std::abs(mean - 1.001) < 5 * deviation);
  });
}

TEST_CASE("adamw: a tensor cut into shards gives the same bits as the whole, and threads do not matter") {
  for_each_device_and_dtype([](Stream& stream, DType states) {
    const int64_t n = 40000;
    Parameter whole(stream, n, states, DType::bf16), other(stream, 77, states, DType::bf16, 9);
    step(stream, {whole.tensor(), other.tensor()});
    for_each_thread_count([&](int) {
      Parameter cut(stream, n, states, DType::bf16), again(stream, 77, states, DType::bf16, 9),
          none(stream, 0, states, DType::bf16);
      step(stream, {none.tensor(), cut.shard(0, 16391), again.tensor(), cut.shard(16391, 16393),
                    cut.shard(16393, n)});
      CHECK(cut.bits() == whole.bits());
      CHECK(again.bits() == other.bits());
    });
  });
}

TEST_CASE("adamw: subnormal moments and gradients count for nothing, and on an x86 CPU become zero") {
  for_each_device_and_dtype([](Stream& stream, DType compute) {
    constexpr int64_t kCount = 100;
    constexpr float kLeastNormal = 0x1p-126f;
    Parameter x(stream, kCount, DType::f32, compute), still(stream, kCount, DType::f32, compute);
    for (const auto& [parameter, moment, square, gradient] :
         {std::tuple(&x, 1e-39f, 1e-40f, 1e-41f), std::tuple(&still, 0.0f, 0.0f, 0.0f)}) {
      parameter->exp_avg.upload_as<float>(std::vector<float>(kCount, moment));
      parameter->exp_avg_sq.upload_as<float>(std::vector<float>(kCount, square));
      parameter->gradient.upload_as<float>(std::vector<float>(kCount, gradient));
    }
    step(stream, {x.tensor(), still.tensor()});
    CHECK(x.master.floats() == still.master.floats());
    for (const DeviceBuffer* moment : {&x.exp_avg, &x.exp_avg_sq}) {
      for (float value : moment->floats()) {
        CHECK(std::abs(value) < kLeastNormal);
#if defined(__SSE__)
        if (stream.type() == DeviceType::cpu) CHECK(value == 0);
#endif
      }
    }
    // The thread's own arithmetic is as before.
    volatile float half = kLeastNormal;
    half = half * 0.5f;
    CHECK(half > 0);
  });
}

TEST_CASE("adamw: no first gradient, however small, moves a weight by more than the learning rate") {
  for_each_device([](Stream& stream) {
    const AdamwHyper hyper{.beta2 = 0.99999994f, .eps = 1e-15f};  // the ends of these keys' ranges
    std::vector<float> gradients;
    for (float g = 1; g > 0; g *= 0.3f) gradients.push_back(g);
    const int64_t n = std::ssize(gradients);
    Parameter x(stream, n, DType::f32, DType::f32);
    x.gradient.upload(gradients);
    for (DeviceBuffer* zero : {&x.master, &x.exp_avg, &x.exp_avg_sq})
      zero->upload(std::vector<float>(gradients.size()));
    x.corrections.upload(std::vector<float>{1 - hyper.beta1, 1 - hyper.beta2});
    DeviceBuffer scalars(stream, DType::f32, {kStepScalars}, step_scalars(1)), t(stream, DType::i64, {1});
    t.upload_as<int64_t>(std::array<int64_t, 1>{1});
    adamw(stream, {x.tensor()}, hyper, scalars, t);
    for (float moved : x.master.floats()) CHECK(std::abs(moved) < 1.001f * kLr);
  });
}

TEST_CASE("adamw: a factor of 0 moves nothing and still tells the amax; a NaN shows in amax") {
  for_each_device_and_dtype([](Stream& stream, DType states) {
    Parameter x(stream, 1000, states, DType::bf16);
    std::vector<float> weights = x.master.floats();
    for (float& v : weights) v = static_cast<float>(bf16(v));
    auto after = x.bits();
    after[0] = largest_bits(weights);  // the weights' amax, which bytes of FP8 are made with, moved or not
    step(stream, {x.tensor()}, 0.0f);
    CHECK(x.bits() == after);
    auto gradient = x.gradient.floats();
    gradient[500] = std::numeric_limits<float>::quiet_NaN();
    gradient[501] = std::numeric_limits<float>::infinity();
    x.gradient.upload(gradient);
    step(stream, {x.tensor()});
    CHECK(std::isnan(x.exp_avg.floats()[500]));
    CHECK(x.exp_avg.floats()[501] == std::numeric_limits<float>::infinity());
    CHECK(std::isnan(x.compute.floats()[500]));
    CHECK(x.amax.download_as<uint32_t>()[0] > 0x7f800000u);
  });
}

TEST_CASE("adamw on meta records what crosses memory, and refuses tensors that do not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::f32, {4, 8}), narrow = shape_only(DType::bf16, {4, 8}),
               flat = shape_only(DType::f32, {32});
  const Tensor scalars = shape_only(DType::f32, {kStepScalars}), t = shape_only(DType::i64, {1});
  const AdamwTensor good{.master = x,
                         .gradient = x,
                         .exp_avg = x,
                         .exp_avg_sq = x,
                         .compute = narrow,
                         .bias_correction = shape_only(DType::f32, {2}),
                         .amax = shape_only(DType::u32, {1})};
  adamw(stream, {good}, {}, scalars, t);
  CHECK(recorder.bytes() == 32 * 30);
  AdamwTensor small = good;
  small.exp_avg = small.exp_avg_sq = narrow;
  small.compute = small.amax = {};
  adamw(stream, {small}, {}, scalars, t);
  CHECK(recorder.bytes() == 32 * 30 + 32 * 20);

  auto says = [&](auto&& change, const std::string& message) {
    AdamwTensor bad = good;
    change(bad);
    CHECK_THROWS_WITH(adamw(stream, {good, bad}, {}, scalars, t), "[adamw] tensor 1: " + message);
  };
  says([&](auto& a) { a.master = narrow; }, "master is bf16 [4, 8], expected f32 [4, 8]");
  says([&](auto& a) { a.gradient = flat; }, "gradient is f32 [32], expected f32 [4, 8]");
  says([&](auto& a) { a.exp_avg.dtype = DType::i32; }, "exp_avg is i32 [4, 8], expected f32 or bf16");
  says([&](auto& a) { a.exp_avg = flat; }, "exp_avg is f32 [32], expected f32 [4, 8]");
  says([&](auto& a) { a.exp_avg_sq = narrow; }, "exp_avg_sq is bf16 [4, 8], expected f32 [4, 8]");
  says([&](auto& a) { a.bias_correction = flat; }, "bias_correction is f32 [32], expected f32 [2]");
  says([&](auto& a) { a.compute.dtype = DType::i32; }, "compute is i32 [4, 8], expected f32 or bf16");
  says([&](auto& a) { a.compute = flat; }, "compute is f32 [32], expected f32 [4, 8]");
  says([&](auto& a) { a.amax = flat; }, "amax is f32 [32], expected u32 [1]");
  CHECK_THROWS_WITH(adamw(stream, {good}, {}, flat, t), "[adamw] scalars is f32 [32], expected f32 [5]");
  CHECK_THROWS_WITH(adamw(stream, {good}, {}, scalars, flat), "[adamw] step is f32 [32], expected i64 [1]");
}
