#include "core/optim/spike.h"

#include <array>
#include <cmath>

#include "core/cost.h"
#include "core/optim/step_scalars.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

/// The window of one run on a device.
struct Run {
  Run(Stream& stream, SpikeRule rule)
      : stream(stream),
        rule(rule),
        loss(stream, DType::f32, {1}),
        window(stream, DType::f32, {2, rule.window}),
        known(stream, DType::i64, {1}),
        found(stream, DType::f32, {4}),
        scalars(stream, DType::f32, {kStepScalars}),
        skipped(stream, DType::i32, {1}) {
    known.upload_as<int64_t>(std::array{int64_t{0}});
  }
  /// Loss and norm of a step of 8 tokens under loss scale 4: what becomes of it, and its factor.
  int step(float mean, float norm, int before = kNotSkipped) {
    std::vector<float> s(kStepScalars, 1.0f);
    s[kLossScale] = 4;
    s[kLossGradient] = 0.5f;
    s[kGradientNorm] = norm;
    s[kGradientFactor] = 0.25f;
    scalars.upload(s);
    loss.upload(std::array{8 * mean});
    skipped.upload_as<int32_t>(std::array{before});
    skip_spike(stream, {loss, window, known, found, scalars, skipped}, rule);
    const int what = skipped.download_as<int32_t>()[0];
    CHECK(scalars.floats()[kGradientFactor] == (what == before ? 0.25f : 0.0f));
    return what;
  }
  Stream& stream;
  SpikeRule rule;
  DeviceBuffer loss, window, known, found, scalars, skipped;
};

float wave(int step) { return 3 + 0.1f * std::sin(static_cast<float>(step)); }

}  // namespace

TEST_CASE("spike: what is far above the last steps is skipped, once half of the window is known") {
  for_each_device([](Stream& stream) {
    Run run(stream, {.window = 16, .sigma = 6});
    CHECK(run.step(100, 100) == kNotSkipped);
    for (int i = 0; i < 6; ++i) CHECK(run.step(wave(i), 1) == kNotSkipped);
    CHECK(std::isinf(run.found.floats()[1]));
    for (int i = 6; i < 30; ++i) CHECK(run.step(wave(i), wave(i + 1)) == kNotSkipped);
    // Standard deviation about 0.07: 6 of them are below 0.5.
    CHECK(run.step(3.6f, 3) == kLossSpike);
    CHECK(run.found.floats()[0] == Approx(3.6));
    CHECK(run.found.floats()[1] < 3.5);
    for (int i = 30; i < 60; ++i) CHECK(run.step(wave(i), wave(i + 1)) == kNotSkipped);
    CHECK(run.step(3, 3.6f) == kNormSpike);
    CHECK(run.step(0.1f, 0.1f) == kNotSkipped);  // below is no spike
    const int64_t known = run.known.download_as<int64_t>()[0];
    CHECK(known == 64);
    const std::vector<float> window = run.window.floats();
    CHECK(run.step(3, 3, kNotFinite) == kNotFinite);  // enters nothing
    CHECK(run.known.download_as<int64_t>()[0] == known);
    CHECK(run.window.floats() == window);
  });
}

TEST_CASE("spike: a step whose loss or norm is not finite does not enter the window") {
  for_each_device([](Stream& stream) {
    Run run(stream, {.window = 8, .sigma = 6});
    for (int i = 0; i < 8; ++i) CHECK(run.step(wave(i), wave(i)) == kNotSkipped);
    const std::vector<float> window = run.window.floats();
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      INFO(value);
      CHECK(run.step(value, 3) == (value > 0 ? kLossSpike : kNotSkipped));
      CHECK(run.step(3, value) == (value > 0 ? kNormSpike : kNotSkipped));
      CHECK(run.known.download_as<int64_t>()[0] == 8);
      CHECK(run.window.floats() == window);
    }
    CHECK(run.step(100, 3) == kLossSpike);
    CHECK(run.step(3, 100) == kNormSpike);
  });
}

TEST_CASE("spike: a level that lasts is accepted, and the bound is that of the formula") {
  for_each_device([](Stream& stream) {
    Run run(stream, {.window = 8, .sigma = 2});
    for (int i = 0; i < 8; ++i) run.step(wave(i), 1);
    int skipped = 0;
    for (int i = 0; i < 8; ++i) skipped += run.step(5 + wave(i), 1) == kLossSpike;
    CHECK(skipped > 0);
    CHECK(skipped < 5);
    CHECK(run.step(5 + wave(8), 1) == kNotSkipped);
    double sum = 0, squares = 0;
    for (int i = 0; i < 8; ++i) sum += 5 + static_cast<double>(wave(i));
    for (int i = 0; i < 8; ++i) squares += std::pow(5 + static_cast<double>(wave(i)) - sum / 8, 2);
    CHECK(run.found.floats()[1] == Approx(sum / 8 + 2 * std::sqrt(squares / 7)).epsilon(1e-5));
  });
}

TEST_CASE("spike: on meta it is recorded, and tensors that do not fit are refused") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  SkipSpike args{
      shape_only(DType::f32, {1}), shape_only(DType::f32, {2, 8}),         shape_only(DType::i64, {1}),
      shape_only(DType::f32, {4}), shape_only(DType::f32, {kStepScalars}), shape_only(DType::i32, {1})};
  skip_spike(stream, args, {.window = 8, .sigma = 6});
  CHECK(recorder.bytes() == 64);
  CHECK_THROWS_WITH(skip_spike(stream, args, {.window = 9, .sigma = 6}),
                    "[skip_spike] window is f32 [2, 8], expected f32 [2, 9]");
}
