// Operations that leave their output in FP8: the codes are those of the same operation and quantize(), one
// after the other.
#include <array>

#include "core/cost.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "core/optim/adamw.h"
#include "tests/core/ops/float8_written.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

// Part of a block; past one; a row of a warp, of a block, and one past what a block's registers hold.
const Shape kShapes[] = {{5, 16}, {9, 144}, {3, 2048}, {2, 4112}, {2, 16640}};

template <class Body>
void for_each_output(Body&& body) {
  for_each_device([&](Stream& stream) {
    for (const Shape& shape : kShapes) {
      for (Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block_1x128}) {
        for (DType format : {DType::e4m3, DType::e5m2}) {
          if (format == DType::e5m2 && granularity != Granularity::tensor) continue;
          for (bool kept : {false, true}) {
            INFO(to_string(shape) << " " << name_of(granularity) << " " << name_of(format) << " kept "
                                  << kept);
            body(stream, DType::bf16, shape, kept, Written(stream, granularity, format, shape),
                 Written(stream, granularity, format, shape));
          }
        }
      }
    }
  });
}

}  // namespace

TEST_CASE(
    "rms_norm_forward in FP8: codes, scales, counts, y, sum and rstd of rms_norm_forward without it and of "
    "quantize") {
  for_each_output([](Stream& stream, DType dtype, Shape shape, bool kept, const Written& fused,
                     const Written& apart) {
    for (bool with_residual : {false, true}) {
      INFO("residual " << with_residual);
      const bool with_nan = shape.rows() == 5;
      DeviceBuffer x(stream, dtype, shape, spread(shape.numel(), 1, with_nan)),
          residual(stream, dtype, shape, spread(shape.numel(), 2)),
          weight(stream, dtype, {shape.cols()}, normal_values(shape.cols(), 3));
      DeviceBuffer y(stream, dtype, shape), sum(stream, dtype, shape),
          rstd(stream, DType::f32, {shape.rows()});
      DeviceBuffer fused_y(stream, dtype, shape), fused_sum(stream, dtype, shape),
          fused_rstd(stream, DType::f32, {shape.rows()});
      RmsNormForward norm{.x = x, .weight = weight, .y = y, .rstd = rstd};
      if (with_residual) norm.residual = residual, norm.sum = sum;
      rms_norm_forward(stream, norm);
      apart.quantize_from(stream, y);
      norm.y = kept ? fused_y.tensor() : Tensor{};
      norm.rstd = fused_rstd;
      if (with_residual) norm.sum = fused_sum;
      norm.float8 = fused.output;
      rms_norm_forward(stream, norm);
      norm.float8 = {};
      fused.same_as(apart);
      CHECK(fused.non_finite.download_as<uint32_t>()[0] == (with_nan && !fused.is_scaled_before() ? 1u : 0u));
      CHECK(same_bits(fused_rstd, rstd));
      if (with_residual) CHECK(same_bits(fused_sum, sum));
      if (kept) CHECK(same_bits(fused_y, y));
    }
  });
}

TEST_CASE(
    "swiglu_forward in FP8: codes, scales, counts and output of swiglu_forward without it and of quantize") {
  for_each_output([](Stream& stream, DType dtype, Shape shape, bool kept, const Written& fused,
                     const Written& apart) {
    const bool with_nan = shape.rows() == 5;
    DeviceBuffer gate_up(stream, dtype, {shape.rows(), 2 * shape.cols()},
                         spread(2 * shape.numel(), 4, with_nan)),
        out(stream, dtype, shape), fused_out(stream, dtype, shape);
    swiglu_forward(stream, {.gate_up = gate_up, .out = out});
    apart.quantize_from(stream, out);
    swiglu_forward(stream,
                   {.gate_up = gate_up, .out = kept ? fused_out.tensor() : Tensor{}, .float8 = fused.output});
    fused.same_as(apart);
    CHECK(fused.non_finite.download_as<uint32_t>()[0] == (with_nan && !fused.is_scaled_before() ? 1u : 0u));
    const auto counts = fused.counters.download_as<int64_t>();
    CHECK(counts[0] == shape.numel());
    if (shape.numel() > 1000) CHECK(counts[1] > 0);
    if (kept) CHECK(same_bits(fused_out, out));
  });
}

TEST_CASE("producers in FP8 are the same for any number of threads") {
  Stream stream = Stream::cpu();
  const Shape shape{67, 144};
  DeviceBuffer gate_up(stream, DType::bf16, {67, 288}, spread(67 * 288, 7));
  std::vector<uint8_t> first;
  for_each_thread_count([&](int) {
    Written w(stream, Granularity::block_1x128, DType::e4m3, shape);
    swiglu_forward(stream, {.gate_up = gate_up, .float8 = w.output});
    if (first.empty()) first = w.bytes.download_as<uint8_t>();
    CHECK(w.bytes.download_as<uint8_t>() == first);
    CHECK(w.counters.download_as<int64_t>()[0] == shape.numel());
  });
}

TEST_CASE("adamw's amax is fp8::amax of the weight that it leaves") {
  for_each_device([](Stream& stream) {
    const int64_t n = 3001;
    DeviceBuffer master(stream, DType::f32, {n}, spread(n, 1)),
        gradient(stream, DType::f32, {n}, spread(n, 2)),
        exp_avg(stream, DType::f32, {n}, std::vector<float>(n)),
        exp_avg_sq(stream, DType::f32, {n}, std::vector<float>(n)), told(stream, DType::u32, {1}),
        want(stream, DType::u32, {1}), t(stream, DType::i64, {1});
    for (float factor : {1.0f, 0.0f}) {
      told.upload_as<uint32_t>(std::array{0u});
      want.upload_as<uint32_t>(std::array{0u});
      std::vector<float> scalars(kStepScalars, 1.0f);
      scalars[kGradientFactor] = factor;
      DeviceBuffer step(stream, DType::f32, {kStepScalars}, scalars),
          corrections(stream, DType::f32, {2}, std::vector{0.1f, 0.05f});
      t.upload_as<int64_t>(std::array<int64_t, 1>{1});
      adamw(stream,
            {{.master = master,
              .gradient = gradient,
              .exp_avg = exp_avg,
              .exp_avg_sq = exp_avg_sq,
              .bias_correction = corrections,
              .amax = told}},
            {}, step, t);
      fp8::amax(stream, master, want);
      CHECK(want.download_as<uint32_t>()[0] > 0);
      CHECK(told.download_as<uint32_t>() == want.download_as<uint32_t>());
    }
  });
}

TEST_CASE("producers in FP8 on meta record what crosses memory, and refuse what does not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {4, 32}), weight = shape_only(DType::bf16, {32}),
               rstd = shape_only(DType::f32, {4});
  const RowOutput output{.out = {shape_only(DType::e4m3, {4, 32}), shape_only(DType::f32, {4})}};
  const RmsNormForward norm{.x = x, .weight = weight, .rstd = rstd, .float8 = output};
  rms_norm_forward(stream, norm);
  CHECK(recorder.bytes() == 128 * 3 + 16);
  recorder.clear();
  auto all = norm;
  all.residual = all.sum = all.y = x;
  rms_norm_forward(stream, all);
  CHECK(recorder.bytes() == 128 * 9 + 16);
  recorder.clear();
  const SwigluForward swiglu{.gate_up = shape_only(DType::bf16, {4, 64}), .float8 = output};
  swiglu_forward(stream, swiglu);
  CHECK(recorder.bytes() == 128 * 5 + 16);

  auto refuses = [&](auto&& change, const char* message) {
    auto bad = norm;
    change(bad);
    CHECK_THROWS_WITH(rms_norm_forward(stream, bad), message);
  };
  refuses([](auto& a) { a.float8.granularity = Granularity::block_128x128; },
          "[rms_norm_quantize] scales per 128x128 are not made together with a result: expected row or "
          "1x128, else quantize the result");
  refuses(
      [](auto& a) {
        a.x = shape_only(DType::bf16, {4, 24});
      },
      "[rms_norm_quantize] rows have 24 elements, FP8 products take multiples of 16");
  refuses(
      [](auto& a) {
        a.float8.out.codes = shape_only(DType::e4m3, {4, 16});
      },
      "[rms_norm_quantize] out.codes is e4m3 [4, 16], expected e4m3 [4, 32]");
  refuses(
      [](auto& a) {
        a.float8.out.codes = shape_only(DType::e5m2, {4, 32});
      },
      "[rms_norm_quantize] out.codes is e5m2 with scales per row: expected e4m3, or scales per tensor");
  refuses(
      [](auto& a) {
        a.x = shape_only(DType::f32, {4, 32});
      },
      "[rms_norm_quantize] makes f32, expected bf16, else quantize the result");
  refuses(
      [](auto& a) {
        a.float8.granularity = Granularity::tensor, a.float8.out.scale_inverse = shape_only(DType::f32, {1});
      },
      "[rms_norm_quantize] float8.amax is f32 [], expected u32 [1]");
  refuses([](auto& a) { a.float8.out.scale_inverse = shape_only(DType::f32, {1}); },
          "[rms_norm_quantize] out.scale_inverse is f32 [1], expected f32 [4]");
  refuses([](auto& a) { a.float8.counters = shape_only(DType::i64, {2}); },
          "[rms_norm_quantize] counters is i64 [2], expected i64 [3]");
  refuses([](auto& a) { a.float8.non_finite = shape_only(DType::f32, {1}); },
          "[rms_norm_quantize] non_finite is f32 [1], expected u32 [1]");
  refuses([](auto& a) { a.weight = shape_only(DType::f32, {32}); },
          "[rms_norm_quantize] weight is f32 [32], expected bf16 [32]");
  refuses([&](auto& a) { a.sum = x; },
          "[rms_norm_quantize] residual and sum belong together: give both or neither");
  refuses([](auto& a) { a.amax = shape_only(DType::u32, {1}); },
          "[rms_norm_quantize] amax is given: scales per row and block need no tensor's");
  auto bad = swiglu;
  bad.gate_up = shape_only(DType::bf16, {4, 63});
  CHECK_THROWS_WITH(swiglu_forward(stream, bad),
                    "[swiglu_quantize] gate_up is bf16 [4, 63], expected [N, 2F]: gate and up side by side");
  bad = swiglu, bad.out = shape_only(DType::f32, {4, 32});
  CHECK_THROWS_WITH(swiglu_forward(stream, bad),
                    "[swiglu_quantize] out is f32 [4, 32], expected bf16 [4, 32]");
  bad = swiglu, bad.amax = shape_only(DType::u32, {1});
  CHECK_THROWS_WITH(swiglu_forward(stream, bad),
                    "[swiglu_quantize] amax is given: scales per row and block need no tensor's");
}

TEST_CASE("swiglu_forward in FP8 on a GPU refuses addresses that are not aligned") {
  if (!has_gpu()) return skip(kNoGpu);
  Stream device = Stream::cuda(0);
  DeviceBuffer gate_up(device, DType::bf16, {2, 32}), bytes(device, DType::u8, {64}),
      scales(device, DType::f32, {2});
  Tensor shifted{static_cast<uint8_t*>(bytes.tensor().data) + 8, DType::e4m3, {2, 16}};
  CHECK_THROWS_WITH(
      swiglu_forward(device, {.gate_up = gate_up, .float8 = {.out = {shifted, scales}}}),
      "[swiglu_quantize] an address is not aligned to 16 bytes, which this operation needs on a GPU");
  device.synchronize();
}
