// Backward operations that leave the gradient in FP8 as well: everything they write is what the plain
// operation and quantize(), one after the other, write.
#include "core/cost.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "tests/core/ops/float8_written.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

template <class Body>
void for_each_output(std::span<const Shape> shapes, Body&& body) {
  for_each_device([&](Stream& stream) {
    for (const Shape& shape : shapes) {
      for (Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block_1x128}) {
        for (DType format : {DType::e4m3, DType::e5m2}) {
          if (format == DType::e5m2 && granularity != Granularity::tensor) continue;
          for (bool all : {false, true}) {
            INFO(to_string(shape) << " " << name_of(granularity) << " " << name_of(format) << " all " << all);
            body(stream, DType::bf16, shape, all, Written(stream, granularity, format, shape),
                 Written(stream, granularity, format, shape));
          }
        }
      }
    }
  });
}

/// Operands of a norm's backward pass, and where it and the fused one write.
struct Norm {
  Norm(Stream& stream, DType dtype, Shape shape, bool with_nan)
      : dy(stream, dtype, shape, spread(shape.numel(), 1, with_nan)),
        x(stream, dtype, shape, normal_values(shape.numel(), 2)),
        through(stream, dtype, shape, spread(shape.numel(), 3)),
        weight(stream, dtype, {shape.cols()}, normal_values(shape.cols(), 4)),
        rstd(stream, DType::f32, {shape.rows()}, std::vector<float>(static_cast<size_t>(shape.rows()), 0.7f)),
        dx(stream, dtype, shape),
        fused_dx(stream, dtype, shape, spread(shape.numel(), 3)),
        dweight(stream, DType::f32, {shape.cols()}, normal_values(shape.cols(), 5)),
        fused_dweight(stream, DType::f32, {shape.cols()}, normal_values(shape.cols(), 5)),
        workspace(stream, DType::f32, rms_norm_workspace(stream, shape.cols())) {}
  /// `through`: the gradient that passes the norm is added, and the fused operation writes over it.
  void compare(Stream& stream, bool passes, const Written& fused, const Written& apart) const {
    RmsNormBackward norm{.dy = dy,
                         .x = x,
                         .weight = weight,
                         .rstd = rstd,
                         .dresidual = passes ? through.tensor() : Tensor{},
                         .dx = dx,
                         .dweight = dweight,
                         .workspace = workspace};
    rms_norm_backward(stream, norm);
    apart.quantize_from(stream, dx);
    norm.dx = fused_dx;
    if (passes) norm.dresidual = fused_dx;
    norm.dweight = fused_dweight;
    norm.float8 = fused.output;
    rms_norm_backward(stream, norm);
    fused.same_as(apart);
    CHECK(same_bits(fused_dx, dx));
    CHECK(same_bits(fused_dweight, dweight));
  }
  DeviceBuffer dy, x, through, weight, rstd, dx, fused_dx, dweight, fused_dweight, workspace;
};

}  // namespace

TEST_CASE(
    "rms_norm_backward in FP8: codes, scales, counts, dx and dweight of rms_norm_backward without it and of "
    "quantize") {
  // Part of a block; past one; rows of a warp, of a block with two and with four packs a thread, of a large
  // block, and past what its registers hold.
  const Shape shapes[] = {{5, 16}, {9, 144}, {11, 1024}, {3, 2064}, {2, 4112}, {2, 8208}, {1, 16640}};
  for_each_output(shapes, [](Stream& stream, DType dtype, Shape shape, bool passes, const Written& fused,
                             const Written& apart) {
    const bool with_nan = shape.rows() == 5;
    Norm(stream, dtype, shape, with_nan).compare(stream, passes, fused, apart);
    CHECK(fused.non_finite.download_as<uint32_t>()[0] == (with_nan && !fused.is_scaled_before() ? 1u : 0u));
    CHECK(fused.counters.download_as<int64_t>()[0] == shape.numel());
  });
}

TEST_CASE("rms_norm_backward in FP8: rows that a team walks over one after the other") {
  for_each_device([](Stream& stream) {
    // More than are on the way at once, and not the same number for all.
    for (const Shape& shape : {Shape{8453, 16}, Shape{1061, 1040}}) {
      for (Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::block_1x128}) {
        INFO(to_string(shape) << " " << name_of(granularity));
        Norm(stream, DType::bf16, shape, false)
            .compare(stream, true, Written(stream, granularity, DType::e4m3, shape),
                     Written(stream, granularity, DType::e4m3, shape));
      }
    }
  });
}

TEST_CASE(
    "swiglu_backward in FP8: codes, scales, counts and gradients of swiglu_backward without it and of "
    "quantize") {
  // Of dgate_up: halves that end inside a group and at its end; rows of a warp, of a block, of a large block,
  // and past what registers hold.
  const Shape shapes[] = {{5, 16}, {9, 400}, {11, 768}, {3, 2064}, {3, 2304}, {2, 16656}, {2, 33024}};
  for_each_output(shapes, [](Stream& stream, DType dtype, Shape shape, bool writes_out, const Written& fused,
                             const Written& apart) {
    const bool with_nan = shape.rows() == 5;
    const Shape half{shape.rows(), shape.cols() / 2};
    DeviceBuffer dout(stream, dtype, half, spread(half.numel(), 1, with_nan)),
        gate_up(stream, dtype, shape, normal_values(shape.numel(), 2)), gradient(stream, dtype, shape),
        out(stream, dtype, half), fused_out(stream, dtype, half);
    SwigluBackward swiglu{.dout = dout, .gate_up = gate_up, .dgate_up = gradient};
    if (writes_out) swiglu.out = out;
    swiglu_backward(stream, swiglu);
    apart.quantize_from(stream, gradient);
    swiglu.dgate_up = gate_up;  // as models do
    if (writes_out) swiglu.out = fused_out;
    swiglu.float8 = fused.output;
    swiglu_backward(stream, swiglu);
    fused.same_as(apart);
    CHECK(fused.non_finite.download_as<uint32_t>()[0] == (with_nan && !fused.is_scaled_before() ? 1u : 0u));
    CHECK(fused.counters.download_as<int64_t>()[0] == shape.numel());
    CHECK(same_bits(gate_up, gradient));
    if (writes_out) CHECK(same_bits(fused_out, out));
  });
}

TEST_CASE("gradients in FP8 are the same for any number of threads") {
  Stream stream = Stream::cpu();
  const Shape shape{67, 144};
  std::vector<uint8_t> first_dx, first_dgate_up;
  for_each_thread_count([&](int) {
    Written fused(stream, Granularity::block_1x128, DType::e4m3, shape),
        apart(stream, Granularity::block_1x128, DType::e4m3, shape);
    Norm(stream, DType::bf16, shape, false).compare(stream, true, fused, apart);
    if (first_dx.empty()) first_dx = fused.bytes.download_as<uint8_t>();
    CHECK((fused.bytes.download_as<uint8_t>() == first_dx));
    DeviceBuffer dout(stream, DType::bf16, {67, 72}, spread(67 * 72, 7)),
        gate_up(stream, DType::bf16, shape, spread(shape.numel(), 8));
    Written dgate_up(stream, Granularity::row, DType::e4m3, shape);
    swiglu_backward(stream,
                    {.dout = dout, .gate_up = gate_up, .dgate_up = gate_up, .float8 = dgate_up.output});
    if (first_dgate_up.empty()) first_dgate_up = dgate_up.bytes.download_as<uint8_t>();
    CHECK((dgate_up.bytes.download_as<uint8_t>() == first_dgate_up));
    CHECK(dgate_up.counters.download_as<int64_t>()[0] == shape.numel());
  });
}

TEST_CASE("gradients in FP8 on meta record what crosses memory, and refuse what does not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {4, 32}), half = shape_only(DType::bf16, {4, 16});
  const RowOutput output{.out = {shape_only(DType::e4m3, {4, 32}), shape_only(DType::f32, {4})}};
  const RmsNormBackward norm{.dy = x,
                             .x = x,
                             .weight = shape_only(DType::bf16, {32}),
                             .rstd = shape_only(DType::f32, {4}),
                             .dx = x,
                             .dweight = shape_only(DType::f32, {32}),
                             .workspace = shape_only(DType::f32, rms_norm_workspace(stream, 32)),
                             .float8 = output};
  rms_norm_backward(stream, norm);
  CHECK(recorder.bytes() == 128 * 7 + 16);
  recorder.clear();
  auto residual = norm;
  residual.dresidual = x;
  rms_norm_backward(stream, residual);
  CHECK(recorder.bytes() == 128 * 9 + 16);
  recorder.clear();
  const SwigluBackward swiglu{.dout = half, .gate_up = x, .dgate_up = x, .float8 = output};
  swiglu_backward(stream, swiglu);
  CHECK(recorder.bytes() == 64 * 12 + 16);
  recorder.clear();
  auto again = swiglu;
  again.out = half;
  swiglu_backward(stream, again);
  CHECK(recorder.bytes() == 64 * 14 + 16);

  auto refuses = [&](auto&& change, const char* message) {
    auto bad = norm;
    change(bad);
    CHECK_THROWS_WITH(rms_norm_backward(stream, bad), message);
  };
  refuses([](auto& a) { a.float8.granularity = Granularity::block_1x32; },
          "[rms_norm_backward_quantize] scales per 1x32 are not made together with a result: expected row or "
          "1x128, else quantize the result");
  refuses(
      [](auto& a) {
        a.float8.out.codes = shape_only(DType::e4m3, {4, 16});
      },
      "[rms_norm_backward_quantize] out.codes is e4m3 [4, 16], expected e4m3 [4, 32]");
  refuses([](auto& a) { a.dx = Tensor{}; },
          "[rms_norm_backward_quantize] dx is f32 [], expected bf16 [4, 32] (like x)");
  refuses([](auto& a) { a.amax = shape_only(DType::u32, {1}); },
          "[rms_norm_backward_quantize] amax is given: scales per row and block need no tensor's");
  auto refuses_swiglu = [&](auto&& change, const char* message) {
    auto bad = swiglu;
    change(bad);
    CHECK_THROWS_WITH(swiglu_backward(stream, bad), message);
  };
  refuses_swiglu([&](auto& a) { a.dout = x; },
                 "[swiglu_backward_quantize] dout is bf16 [4, 32], expected bf16 [4, 16]");
  refuses_swiglu(
      [](auto& a) {
        a.float8.out.codes = shape_only(DType::e4m3, {4, 16});
      },
      "[swiglu_backward_quantize] out.codes is e4m3 [4, 16], expected e4m3 [4, 32]");
  refuses_swiglu([](auto& a) { a.amax = shape_only(DType::u32, {1}); },
                 "[swiglu_backward_quantize] amax is given: scales per row and block need no tensor's");
}

TEST_CASE("swiglu_backward in FP8 on a GPU refuses addresses that are not aligned") {
  if (!has_gpu()) return skip(kNoGpu);
  Stream device = Stream::cuda(0);
  DeviceBuffer dout(device, DType::bf16, {2, 16}), gate_up(device, DType::bf16, {2, 32}),
      bytes(device, DType::u8, {128}), scales(device, DType::f32, {2});
  Tensor shifted{static_cast<uint8_t*>(bytes.tensor().data) + 8, DType::e4m3, {2, 32}};
  CHECK_THROWS_WITH(
      swiglu_backward(
          device,
          {.dout = dout, .gate_up = gate_up, .dgate_up = gate_up, .float8 = {.out = {shifted, scales}}}),
      "[swiglu_backward_quantize] an address is not aligned to 16 bytes, which this operation "
      "needs on a GPU");
  device.synchronize();
}
