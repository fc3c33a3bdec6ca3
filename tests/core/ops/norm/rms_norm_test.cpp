#include "core/ops/norm/rms_norm.h"

#include <array>
#include <cstring>
#include <limits>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Size {
  int64_t rows, cols;
};
// One element, less than a vector, an odd tail, whole vectors, more rows than groups of rows, wide rows.
const Size kSizes[] = {{1, 1},    {3, 7},    {2, 16},   {5, 37},   {70, 64},
                       {19, 384}, {3, 1000}, {2, 4096}, {2, 4104}, {1, 16896}};
constexpr float kEps = 1e-5f;

std::vector<double> reference_forward(const std::vector<double>& h, const std::vector<double>& weight,
                                      double eps, std::vector<double>* rstd = nullptr) {
  const size_t cols = weight.size(), rows = h.size() / cols;
  std::vector<double> y(h.size());
  for (size_t i = 0; i < rows; ++i) {
    double squares = 0;
    for (size_t c = 0; c < cols; ++c) squares += h[i * cols + c] * h[i * cols + c];
    double r = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    if (rstd) rstd->push_back(r);
    for (size_t c = 0; c < cols; ++c) y[i * cols + c] = h[i * cols + c] * r * weight[c];
  }
  return y;
}

struct Gradients {
  std::vector<double> dx, dweight;
  std::vector<double> dx_size, dweight_size;  ///< sums of absolute values of the same terms
};
Gradients reference_backward(const std::vector<double>& dy, const std::vector<double>& h,
                             const std::vector<double>& weight, const std::vector<double>& rstd) {
  const size_t cols = weight.size(), rows = rstd.size();
  Gradients r{std::vector<double>(h.size()), std::vector<double>(cols), std::vector<double>(h.size()),
              std::vector<double>(cols)};
  for (size_t i = 0; i < rows; ++i) {
    double dot = 0, size = 0;
    for (size_t k = i * cols; k < (i + 1) * cols; ++k) {
      dot += dy[k] * weight[k % cols] * h[k];
      size += std::abs(dy[k] * weight[k % cols] * h[k]);
    }
    double slope = rstd[i] * rstd[i] / static_cast<double>(cols);
    for (size_t c = 0, k = i * cols; c < cols; ++c, ++k) {
      r.dx[k] = rstd[i] * (dy[k] * weight[c] - h[k] * slope * dot);
      r.dx_size[k] = rstd[i] * (std::abs(dy[k] * weight[c]) + std::abs(h[k]) * slope * size);
      r.dweight[c] += dy[k] * h[k] * rstd[i];
      r.dweight_size[c] += std::abs(dy[k] * h[k] * rstd[i]);
    }
  }
  return r;
}

void check_backward(Stream& stream, DType dtype, Size size, bool with_residual) {
  const auto [rows, cols] = size;
  INFO("rows " << rows << " cols " << cols << " residual " << with_residual);
  auto dy = normal_values(rows * cols, 1, dtype), h = normal_values(rows * cols, 2, dtype, 2.0f);
  auto weight = normal_values(cols, 3, dtype), through = normal_values(rows * cols, 4, dtype);
  auto before = normal_values(cols, 5);
  std::vector<double> exact_rstd;
  reference_forward(as_double(h), as_double(weight), kEps, &exact_rstd);
  auto rstd = as_float(exact_rstd);
  Gradients want = reference_backward(as_double(dy), as_double(h), as_double(weight), as_double(rstd));
  for (size_t i = 0; with_residual && i < want.dx.size(); ++i) {
    want.dx[i] += through[i];
    want.dx_size[i] += std::abs(through[i]);
  }
  for (size_t c = 0; c < before.size(); ++c) {
    want.dweight[c] += before[c];
    want.dweight_size[c] += std::abs(before[c]);
  }

  Shape shape{rows, cols};
  DeviceBuffer dy_NC(stream, dtype, shape, dy), h_NC(stream, dtype, shape, h),
      weight_C(stream, dtype, {cols}, weight), rstd_N(stream, DType::f32, {rows}, rstd),
      through_NC(stream, dtype, shape, through), dx(stream, dtype, shape),
      dweight(stream, DType::f32, {cols}, before), amax(stream, DType::u32, {1}),
      workspace(stream, DType::f32, rms_norm_workspace(stream, cols));
  amax.upload_as<uint32_t>(std::array{0u});
  RmsNormBackward args{.dy = dy_NC,
                       .x = h_NC,
                       .weight = weight_C,
                       .rstd = rstd_N,
                       .dx = dx,
                       .dweight = dweight,
                       .workspace = workspace,
                       .amax = amax};
  if (with_residual) args.dresidual = through_NC;
  rms_norm_backward(stream, args);
  check_close(dx.floats(), want.dx, tolerance(dtype, 8, cols), want.dx_size);
  check_close(dweight.floats(), want.dweight, tolerance(DType::f32, 4, rows), want.dweight_size);
  CHECK(amax.download_as<uint32_t>()[0] == largest_bits(dx.floats()));

  // dx may be written over dy or over the gradient that comes past the norm.
  auto apart = dx.floats();
  if (with_residual) {
    args.dx = through_NC;
    rms_norm_backward(stream, args);
    CHECK((through_NC.floats() == apart));
    through_NC.upload(through);
  }
  args.dx = dy_NC;
  rms_norm_backward(stream, args);
  CHECK((dy_NC.floats() == apart));
}

}  // namespace

TEST_CASE("rms_norm: the FP64 reference's backward is the derivative of its forward") {
  const int64_t rows = 3, cols = 5;
  auto h = as_double(normal_values(rows * cols, 1)), weight = as_double(normal_values(cols, 2));
  auto dy = as_double(normal_values(rows * cols, 3));
  std::vector<double> rstd;
  reference_forward(h, weight, kEps, &rstd);
  Gradients g = reference_backward(dy, h, weight, rstd);
  check_gradient([&](const std::vector<double>& x) { return dot(reference_forward(x, weight, kEps), dy); }, h,
                 g.dx);
  check_gradient([&](const std::vector<double>& w) { return dot(reference_forward(h, w, kEps), dy); }, weight,
                 g.dweight);
}

TEST_CASE("rms_norm_forward agrees with the reference") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (auto [rows, cols] : kSizes) {
      INFO("rows " << rows << " cols " << cols);
      auto x = normal_values(rows * cols, 1, dtype), weight = normal_values(cols, 2, dtype);
      DeviceBuffer x_NC(stream, dtype, {rows, cols}, x), weight_C(stream, dtype, {cols}, weight);
      DeviceBuffer y(stream, dtype, {rows, cols}), rstd(stream, DType::f32, {rows}),
          amax(stream, DType::u32, {1});
      amax.upload_as<uint32_t>(std::array{0u});
      rms_norm_forward(stream,
                       {.x = x_NC, .weight = weight_C, .y = y, .rstd = rstd, .amax = amax, .eps = kEps});
      std::vector<double> want_rstd;
      auto want = reference_forward(as_double(x), as_double(weight), kEps, &want_rstd);
      check_close(y.floats(), want, tolerance(dtype, 6, cols));
      check_close(rstd.floats(), want_rstd, tolerance(DType::f32, 4, cols));
      CHECK(amax.download_as<uint32_t>()[0] == largest_bits(y.floats()));
    }
  });
}

TEST_CASE("rms_norm_forward adds the residual, rounds the sum as stored and normalises exactly that") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (auto [rows, cols] : kSizes) {
      INFO("rows " << rows << " cols " << cols);
      auto x = normal_values(rows * cols, 1, dtype), residual = normal_values(rows * cols, 4, dtype);
      auto weight = normal_values(cols, 2, dtype);
      DeviceBuffer x_NC(stream, dtype, {rows, cols}, x), residual_NC(stream, dtype, {rows, cols}, residual);
      DeviceBuffer weight_C(stream, dtype, {cols}, weight), y(stream, dtype, {rows, cols}),
          rstd(stream, DType::f32, {rows}), sum(stream, dtype, {rows, cols});
      RmsNormForward args{
          .x = x_NC, .weight = weight_C, .residual = residual_NC, .sum = sum, .y = y, .rstd = rstd};
      rms_norm_forward(stream, args);
      std::vector<float> h(x.size());
      for (size_t i = 0; i < h.size(); ++i) {
        h[i] = x[i] + residual[i];
        if (dtype == DType::bf16) h[i] = static_cast<float>(bf16(h[i]));
      }
      CHECK(sum.floats() == h);
      check_close(y.floats(), reference_forward(as_double(h), as_double(weight), args.eps),
                  tolerance(dtype, 6, cols));

      // The sum may be written over either addend.
      auto y_apart = y.floats();
      args.sum = residual_NC;
      rms_norm_forward(stream, args);
      CHECK(residual_NC.floats() == h);
      CHECK(y.floats() == y_apart);
      residual_NC.upload(residual);
      args.sum = x_NC;
      rms_norm_forward(stream, args);
      CHECK(x_NC.floats() == h);
      CHECK(y.floats() == y_apart);
    }
  });
}

TEST_CASE("rms_norm_backward agrees with the reference") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& size : kSizes) {
      for (bool with_residual : {false, true}) check_backward(stream, dtype, size, with_residual);
    }
  });
}

TEST_CASE("rms_norm_backward agrees with the reference where blocks of a GPU walk over many rows") {
  if (!has_gpu()) return skip("there is no GPU");
  Stream stream = Stream::cuda(0);
  for (DType dtype : {DType::f32, DType::bf16}) {
    INFO(name_of(dtype));
    // More rows than are on the way at once, so that a place for one is used again: rows of a warp, of a
    // block with two and with four packs a thread, of a large block; then of elements one by one, some of
    // which have no register for their sum.
    const int64_t pack = 16 / size_of(dtype);
    for (const Size& size : {Size{8453, pack}, Size{1061, 130 * pack}, Size{795, 516 * pack},
                             Size{269, 1028 * pack}, Size{600, 1037}}) {
      for (bool with_residual : {false, true}) check_backward(stream, dtype, size, with_residual);
    }
  }
}

TEST_CASE("rms_norm is bitwise the same for any number of threads, and from run to run") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const int64_t rows = 201, cols = 72;
    Shape shape{rows, cols};
    DeviceBuffer dy(stream, dtype, shape, normal_values(rows * cols, 1)),
        x(stream, dtype, shape, normal_values(rows * cols, 2)),
        weight(stream, dtype, {cols}, normal_values(cols, 3)), y(stream, dtype, shape),
        dx(stream, dtype, shape), rstd(stream, DType::f32, {rows}), dweight(stream, DType::f32, {cols}),
        workspace(stream, DType::f32, rms_norm_workspace(stream, cols));
    std::vector<float> first;
    for_each_thread_count([&](int) {
      rms_norm_forward(stream, {.x = x, .weight = weight, .y = y, .rstd = rstd});
      dweight.upload(std::vector<float>(static_cast<size_t>(cols), 0.0f));
      rms_norm_backward(stream, {.dy = dy,
                                 .x = x,
                                 .weight = weight,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dweight = dweight,
                                 .workspace = workspace});
      std::vector<float> all = y.floats();
      for (const DeviceBuffer* part : {&rstd, &dx, &dweight}) {
        auto values = part->floats();
        all.insert(all.end(), values.begin(), values.end());
      }
      if (first.empty()) first = all;
      CHECK(std::memcmp(first.data(), all.data(), all.size() * sizeof(float)) == 0);
    });
  });
}

TEST_CASE("rms_norm's amax keeps a larger value and never loses a NaN") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const int64_t rows = 5, cols = 37;
    Shape shape{rows, cols};
    auto values = normal_values(rows * cols, 1, dtype);
    DeviceBuffer x(stream, dtype, shape, values), weight(stream, dtype, {cols}, normal_values(cols, 2)),
        y(stream, dtype, shape), rstd(stream, DType::f32, {rows}), amax(stream, DType::u32, {1});
    RmsNormForward args{.x = x, .weight = weight, .y = y, .rstd = rstd, .amax = amax};
    const uint32_t large = std::bit_cast<uint32_t>(1e30f);
    amax.upload_as<uint32_t>(std::array{large});
    rms_norm_forward(stream, args);
    CHECK(amax.download_as<uint32_t>()[0] == large);

    values[static_cast<size_t>(2 * cols + 36)] = std::numeric_limits<float>::quiet_NaN();
    x.upload(values);
    rms_norm_forward(stream, args);
    CHECK(amax.download_as<uint32_t>()[0] > 0x7f800000u);

    amax.upload_as<uint32_t>(std::array{0u});
    DeviceBuffer dweight(stream, DType::f32, {cols}),
        workspace(stream, DType::f32, rms_norm_workspace(stream, cols));
    rms_norm_backward(stream, {.dy = x,
                               .x = y,
                               .weight = weight,
                               .rstd = rstd,
                               .dx = y,
                               .dweight = dweight,
                               .workspace = workspace,
                               .amax = amax});
    CHECK(amax.download_as<uint32_t>()[0] > 0x7f800000u);
  });
}

TEST_CASE("rms_norm on meta records what crosses memory") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Tensor x = shape_only(DType::bf16, {8, 32}), weight = shape_only(DType::bf16, {32}),
         rstd = shape_only(DType::f32, {8});
  rms_norm_forward(stream, {.x = x, .weight = weight, .y = x, .rstd = rstd});
  CHECK(recorder.bytes() == 2 * 8 * 32 * 2);
  rms_norm_forward(stream, {.x = x, .weight = weight, .residual = x, .sum = x, .y = x, .rstd = rstd});
  CHECK(recorder.bytes() == 6 * 8 * 32 * 2);
  RmsNormBackward backward{.dy = x,
                           .x = x,
                           .weight = weight,
                           .rstd = rstd,
                           .dx = x,
                           .dweight = shape_only(DType::f32, {32}),
                           .workspace = shape_only(DType::f32, rms_norm_workspace(stream, 32))};
  rms_norm_backward(stream, backward);
  CHECK(recorder.bytes() == 9 * 8 * 32 * 2);
  backward.dresidual = x;
  rms_norm_backward(stream, backward);
  CHECK(recorder.bytes() == 13 * 8 * 32 * 2);
  auto totals = recorder.totals();
  REQUIRE(totals.size() == 2);
  CHECK(totals[0].op == "rms_norm_forward");
  CHECK(totals[1].calls == 2);
}

TEST_CASE("rms_norm refuses tensors that do not fit, and says which") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {8, 32}), other = shape_only(DType::bf16, {8, 16});
  const Tensor weight = shape_only(DType::bf16, {32}), rstd = shape_only(DType::f32, {8}),
               amax = shape_only(DType::u32, {1});
  const RmsNormForward forward{
      .x = x, .weight = weight, .residual = x, .sum = x, .y = x, .rstd = rstd, .amax = amax};
  auto forward_says = [&](auto&& change, const std::string& message) {
    RmsNormForward args = forward;
    change(args);
    CHECK_THROWS_WITH(rms_norm_forward(stream, args), "[rms_norm_forward] " + message);
  };
  forward_says([&](auto& a) { a.x.dtype = DType::i32; }, "x is i32 [8, 32], expected f32 or bf16");
  forward_says([&](auto& a) { a.y = other; }, "y is bf16 [8, 16], expected bf16 [8, 32] (like x)");
  forward_says([&](auto& a) { a.weight.dtype = DType::f32; }, "weight is f32 [32], expected bf16 [32]");
  forward_says([&](auto& a) { a.rstd.shape = {9}; }, "rstd is f32 [9], expected f32 [8]");
  forward_says([&](auto& a) { a.sum = {}; }, "residual and sum belong together: give both or neither");
  forward_says([&](auto& a) { a.residual = other; },
               "residual is bf16 [8, 16], expected bf16 [8, 32] (like x)");
  forward_says([&](auto& a) { a.sum = other; }, "sum is bf16 [8, 16], expected bf16 [8, 32] (like x)");
  forward_says([&](auto& a) { a.amax.dtype = DType::f32; }, "amax is f32 [1], expected u32 [1]");
  rms_norm_forward(stream, forward);

  const Shape workspace = rms_norm_workspace(stream, 32);
  const RmsNormBackward backward{.dy = x,
                                 .x = x,
                                 .weight = weight,
                                 .rstd = rstd,
                                 .dresidual = x,
                                 .dx = x,
                                 .dweight = shape_only(DType::f32, {32}),
                                 .workspace = shape_only(DType::f32, workspace),
                                 .amax = amax};
  auto backward_says = [&](auto&& change, const std::string& message) {
    RmsNormBackward args = backward;
    change(args);
    CHECK_THROWS_WITH(rms_norm_backward(stream, args), "[rms_norm_backward] " + message);
  };
  backward_says([&](auto& a) { a.x.dtype = DType::i32; }, "x is i32 [8, 32], expected f32 or bf16");
  backward_says([&](auto& a) { a.dy = other; }, "dy is bf16 [8, 16], expected bf16 [8, 32] (like x)");
  backward_says([&](auto& a) { a.dx = other; }, "dx is bf16 [8, 16], expected bf16 [8, 32] (like x)");
  backward_says([&](auto& a) { a.dresidual = other; },
                "dresidual is bf16 [8, 16], expected bf16 [8, 32] (like x)");
  backward_says([&](auto& a) { a.weight.shape = {31}; }, "weight is bf16 [31], expected bf16 [32]");
  backward_says([&](auto& a) { a.rstd.shape = {9}; }, "rstd is f32 [9], expected f32 [8]");
  backward_says([&](auto& a) { a.dweight.dtype = DType::bf16; }, "dweight is bf16 [32], expected f32 [32]");
  backward_says([&](auto& a) { a.workspace.shape = {1}; },
                "workspace is f32 [1], expected f32 " + to_string(workspace));
  backward_says([&](auto& a) { a.amax.shape = {2}; }, "amax is u32 [2], expected u32 [1]");
  rms_norm_backward(stream, backward);
}
