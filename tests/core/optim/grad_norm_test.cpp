#include "core/optim/grad_norm.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "core/cost.h"
#include "core/optim/step_scalars.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

double norm_squared(Stream& stream, const std::vector<Tensor>& gradients) {
  std::vector<Shape> shapes;
  for (const Tensor& gradient : gradients) shapes.push_back(gradient.shape);
  DeviceBuffer out(stream, DType::f64, {1}), workspace(stream, DType::f64, grad_norm_workspace(shapes));
  grad_norm_squared(stream, gradients, out, workspace);
  return out.download_as<double>()[0];
}

struct Clipped {
  float norm, factor;
  int32_t skipped;
};
Clipped clip(Stream& stream, double sum, float max_norm, float loss_scale) {
  DeviceBuffer sum_1(stream, DType::f64, {1}), scalars(stream, DType::f32, {kStepScalars}),
      skipped(stream, DType::i32, {1});
  sum_1.upload_as<double>(std::array{sum});
  std::vector<float> values(kStepScalars, 7.0f);
  values[kLossScale] = loss_scale;
  scalars.upload(values);
  clip_factor(stream, sum_1, max_norm, scalars, skipped);
  auto after = scalars.floats();
  for (int i = 0; i < kStepScalars; ++i) {
    if (i != kGradientNorm && i != kGradientFactor)
      CHECK(after[static_cast<size_t>(i)] == values[static_cast<size_t>(i)]);
  }
  return {after[kGradientNorm], after[kGradientFactor], skipped.download_as<int32_t>()[0]};
}

}  // namespace

TEST_CASE("grad_norm_squared sums the squares of all tensors in f64, the same for any number of threads") {
  for_each_device([](Stream& stream) {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    std::vector<Tensor> gradients;
    long double want = 0;
    int64_t elements = 0;
    for (int64_t n : {1, 0, 37, 40000, 16384, 3}) {
      auto values = normal_values(n, static_cast<uint64_t>(n), DType::f32, 1e-3f);
      for (float x : values) want += static_cast<long double>(x) * x;
      buffers.push_back(std::make_unique<DeviceBuffer>(stream, DType::f32, Shape{n}, values));
      gradients.push_back(*buffers.back());
      elements += n;
    }
    double first = norm_squared(stream, gradients);
    CHECK(std::abs(first - static_cast<double>(want)) <=
          sum_roundoff(elements, DType::f64) * static_cast<double>(want));
    for_each_thread_count([&](int) { CHECK(norm_squared(stream, gradients) == first); });
    CHECK(norm_squared(stream, {}) == 0);
  });
}

TEST_CASE("grad_norm_squared neither overflows nor hides a NaN") {
  for_each_device([](Stream& stream) {
    std::vector<float> values(50, 1e30f);
    DeviceBuffer x(stream, DType::f32, {50}, values);
    CHECK(norm_squared(stream, {x}) == Approx(50e60));
    values[49] = std::numeric_limits<float>::quiet_NaN();
    x.upload(values);
    CHECK(std::isnan(norm_squared(stream, {x})));
    values[49] = -std::numeric_limits<float>::infinity();
    x.upload(values);
    CHECK(std::isinf(norm_squared(stream, {x})));
  });
}

TEST_CASE("grad_norm: clip_factor clips the unscaled norm and leaves the other scalars alone") {
  for_each_device([](Stream& stream) {
    Clipped r = clip(stream, 16.0, 1.0f, 1.0f);
    CHECK(r.norm == 4.0f);
    CHECK(r.factor == Approx(1 / 4.000001).epsilon(1e-7));
    CHECK(r.skipped == 0);
    r = clip(stream, 16.0, 100.0f, 1.0f);
    CHECK(r.factor == 1.0f);
    r = clip(stream, 16.0, 0.0f, 1.0f);  // no clipping
    CHECK(r.factor == 1.0f);
    r = clip(stream, 16.0 * 64, 1.0f, 8.0f);  // gradients were multiplied by 8
    CHECK(r.norm == 4.0f);
    CHECK(r.factor == Approx(1 / 4.000001 / 8).epsilon(1e-7));
    r = clip(stream, 0.0, 1.0f, 1.0f);
    CHECK(r.norm == 0.0f);
    CHECK(r.factor == 1.0f);
    CHECK(r.skipped == 0);
  });
}

TEST_CASE("grad_norm: clip_factor skips a step whose norm is not finite, or whose factor would vanish") {
  for_each_device([](Stream& stream) {
    for (double sum : {double(INFINITY), double(NAN), 1e80}) {
      INFO("sum " << sum);
      Clipped r = clip(stream, sum, 1.0f, 1.0f);
      CHECK_FALSE(std::isfinite(r.norm));
      CHECK(r.factor == 0.0f);
      CHECK(r.skipped == 1);
    }
    Clipped r = clip(stream, 1e72, 1e-30f, 1.0f);
    CHECK(r.norm == Approx(1e36));
    CHECK(r.factor == 0.0f);
    CHECK(r.skipped == 1);
    // The update takes subnormal numbers for zero.
    for (const auto& [max_norm, scale] : {std::pair{1.0f, 1e38f}, std::pair{1e-3f, 2e37f}}) {
      r = clip(stream, 0.0, 0.0f, scale);
      CHECK(r.skipped == (scale > 0x1p126f));
      r = clip(stream, 16.0 * scale * scale, max_norm, scale);
      CHECK(r.norm == 4.0f);
      CHECK(r.factor == 0.0f);
      CHECK(r.skipped == 1);
    }
  });
}

TEST_CASE("grad_norm on meta records what crosses memory, and refuses tensors that do not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::f32, {30000}), out = shape_only(DType::f64, {1});
  const Tensor workspace = shape_only(DType::f64, grad_norm_workspace({x.shape, x.shape}));
  const Tensor scalars = shape_only(DType::f32, {kStepScalars}), skipped = shape_only(DType::i32, {1});
  grad_norm_squared(stream, {x, x}, out, workspace);
  CHECK(recorder.bytes() == 2 * 30000 * 4);
  clip_factor(stream, out, 1, scalars, skipped);
  CHECK(recorder.totals().back().op == "clip_factor");

  Tensor narrow = x;
  narrow.dtype = DType::bf16;
  CHECK_THROWS_WITH(grad_norm_squared(stream, {x, narrow}, out, workspace),
                    "[grad_norm_squared] gradient 1 is bf16 [30000], expected f32");
  CHECK_THROWS_WITH(grad_norm_squared(stream, {x, x}, skipped, workspace),
                    "[grad_norm_squared] out is i32 [1], expected f64 [1]");
  CHECK_THROWS_WITH(grad_norm_squared(stream, {x}, out, workspace),
                    "[grad_norm_squared] workspace is f64 [4], expected f64 [2]");
  CHECK_THROWS_WITH(clip_factor(stream, skipped, 1, scalars, skipped),
                    "[clip_factor] sum_of_squares is i32 [1], expected f64 [1]");
  CHECK_THROWS_WITH(clip_factor(stream, out, 1, x, skipped),
                    "[clip_factor] scalars is f32 [30000], expected f32 [5]");
  CHECK_THROWS_WITH(clip_factor(stream, out, 1, scalars, out),
                    "[clip_factor] skipped is f64 [1], expected i32 [1]");
}
