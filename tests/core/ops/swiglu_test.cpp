#include "core/ops/swiglu.h"

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
  int64_t rows, width;
};
const Size kSizes[] = {{1, 1}, {3, 7}, {2, 16}, {70, 37}, {5, 1000}};

// exp to 2 ulp is 4 roundings; one more each for 1 + e, the division and the products. A GPU's exp errs by
// 1.2 ulp more for each unit of its argument: sizes say so.
constexpr int kOperations = 10;

std::vector<double> reference_forward(const std::vector<double>& gate_up, size_t width) {
  std::vector<double> out;
  for (size_t row = 0; row < gate_up.size(); row += 2 * width) {
    for (size_t c = 0; c < width; ++c) {
      double g = gate_up[row + c], u = gate_up[row + width + c];
      out.push_back(g / (1 + std::exp(-g)) * u);
    }
  }
  return out;
}

std::vector<double> forward_size(const std::vector<double>& gate_up, size_t width) {
  std::vector<double> out = reference_forward(gate_up, width);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = std::abs(out[i]) * (1 + std::abs(gate_up[i / width * 2 * width + i % width]));
  return out;
}

struct Gradient {
  std::vector<double> value, size;
};
Gradient reference_backward(const std::vector<double>& dout, const std::vector<double>& gate_up,
                            size_t width) {
  Gradient r{std::vector<double>(gate_up.size()), std::vector<double>(gate_up.size())};
  for (size_t i = 0; i < dout.size(); ++i) {
    size_t gate = i / width * 2 * width + i % width, up = gate + width;
    double g = gate_up[gate], u = gate_up[up], s = 1 / (1 + std::exp(-g));
    r.value[gate] = dout[i] * u * s * (1 + g * (1 - s));
    r.size[gate] = std::abs(dout[i] * u * s) * (1 + std::abs(g));  // 1 - s is rounded as 1 is
    r.value[up] = dout[i] * g * s;
    r.size[up] = std::abs(r.value[up]) * (1 + std::abs(g));
  }
  return r;
}

}  // namespace

TEST_CASE("swiglu: the FP64 reference's backward is the derivative of its forward") {
  const size_t width = 5;
  auto gate_up = as_double(normal_values(3 * 2 * width, 1, DType::f32, 2)),
       dout = as_double(normal_values(3 * width, 2));
  check_gradient([&](const std::vector<double>& x) { return dot(reference_forward(x, width), dout); },
                 gate_up, reference_backward(dout, gate_up, width).value);
}

TEST_CASE("swiglu_forward agrees with the reference") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (auto [rows, width] : kSizes) {
      INFO("rows " << rows << " width " << width);
      auto gate_up = normal_values(rows * 2 * width, 1, dtype, 3);
      DeviceBuffer gate_up_N2F(stream, dtype, {rows, 2 * width}, gate_up), out(stream, dtype, {rows, width}),
          amax(stream, DType::u32, {1});
      amax.upload_as<uint32_t>(std::array{0u});
      swiglu_forward(stream, {.gate_up = gate_up_N2F, .out = out, .amax = amax});
      check_close(out.floats(), reference_forward(as_double(gate_up), static_cast<size_t>(width)),
                  tolerance(dtype, kOperations),
                  forward_size(as_double(gate_up), static_cast<size_t>(width)));
      CHECK(amax.download_as<uint32_t>()[0] == largest_bits(out.floats()));
    }
  });
}

TEST_CASE("swiglu saturates without a NaN where exp overflows, and keeps a NaN") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const std::vector<float> gates = {-1e30f, -1e4f, -128, -90, -80, 80, 90, 128, 1e4f, 1e30f};
    const int64_t width = static_cast<int64_t>(gates.size());
    std::vector<float> gate_up;
    for (float g : gates) gate_up.push_back(dtype == DType::bf16 ? static_cast<float>(bf16(g)) : g);
    gate_up.insert(gate_up.end(), gates.size(), 1.0f);
    DeviceBuffer gate_up_N2F(stream, dtype, {1, 2 * width}, gate_up), out(stream, dtype, {1, width}),
        dout(stream, dtype, {1, width}, std::vector<float>(gates.size(), 1.0f)),
        dgate_up(stream, dtype, {1, 2 * width}), amax(stream, DType::u32, {1});
    swiglu_forward(stream, {.gate_up = gate_up_N2F, .out = out});
    swiglu_backward(stream, {.dout = dout, .gate_up = gate_up_N2F, .dgate_up = dgate_up});
    // e^-x leaves the range of f32 at x = -88.7, where silu is below 1e-36: that much absolute error is its
    // limit.
    auto want = reference_forward(as_double(gate_up), gates.size());
    auto gradient =
        reference_backward(std::vector<double>(gates.size(), 1.0), as_double(gate_up), gates.size());
    std::vector<double> size;
    for (double w : want) size.push_back(std::max(std::abs(w), 1e-28));
    for (double& s : gradient.size) s = std::max(s, 1e-28);
    check_close(out.floats(), want, tolerance(dtype, kOperations), size);
    check_close(dgate_up.floats(), gradient.value, tolerance(dtype, kOperations), gradient.size);

    gate_up[3] = std::numeric_limits<float>::quiet_NaN();
    gate_up_N2F.upload(gate_up);
    amax.upload_as<uint32_t>(std::array{0u});
    swiglu_forward(stream, {.gate_up = gate_up_N2F, .out = out, .amax = amax});
    CHECK(std::isnan(out.floats()[3]));
    CHECK(amax.download_as<uint32_t>()[0] > 0x7f800000u);
    amax.upload_as<uint32_t>(std::array{0u});
    swiglu_backward(stream, {.dout = dout, .gate_up = gate_up_N2F, .dgate_up = dgate_up, .amax = amax});
    CHECK(amax.download_as<uint32_t>()[0] > 0x7f800000u);
  });
}

TEST_CASE("swiglu_backward agrees with the reference, over its input too, and writes the output again") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (auto [rows, width] : kSizes) {
      INFO("rows " << rows << " width " << width);
      auto gate_up = normal_values(rows * 2 * width, 1, dtype, 3),
           dout = normal_values(rows * width, 2, dtype);
      Gradient want = reference_backward(as_double(dout), as_double(gate_up), static_cast<size_t>(width));
      Shape half{rows, width}, full{rows, 2 * width};
      DeviceBuffer gate_up_N2F(stream, dtype, full, gate_up), dout_NF(stream, dtype, half, dout),
          dgate_up(stream, dtype, full), out(stream, dtype, half), again(stream, dtype, half),
          amax(stream, DType::u32, {1});
      amax.upload_as<uint32_t>(std::array{0u});
      SwigluBackward args{.dout = dout_NF, .gate_up = gate_up_N2F, .dgate_up = dgate_up, .amax = amax};
      swiglu_backward(stream, args);
      check_close(dgate_up.floats(), want.value, tolerance(dtype, kOperations + 2), want.size);
      CHECK(amax.download_as<uint32_t>()[0] == largest_bits(dgate_up.floats()));

      swiglu_forward(stream, {.gate_up = gate_up_N2F, .out = out});
      args.out = again;
      args.dgate_up = gate_up_N2F;
      swiglu_backward(stream, args);
      CHECK(gate_up_N2F.floats() == dgate_up.floats());
      CHECK(again.floats() == out.floats());
    }
  });
}

TEST_CASE("swiglu is bitwise the same for any number of threads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const int64_t rows = 101, width = 40;
    DeviceBuffer gate_up(stream, dtype, {rows, 2 * width}, normal_values(rows * 2 * width, 1)),
        dout(stream, dtype, {rows, width}, normal_values(rows * width, 2)), out(stream, dtype, {rows, width}),
        dgate_up(stream, dtype, {rows, 2 * width});
    std::vector<float> first;
    for_each_thread_count([&](int) {
      swiglu_forward(stream, {.gate_up = gate_up, .out = out});
      swiglu_backward(stream, {.dout = dout, .gate_up = gate_up, .dgate_up = dgate_up});
      auto all = out.floats(), gradient = dgate_up.floats();
      all.insert(all.end(), gradient.begin(), gradient.end());
      if (first.empty()) first = all;
      CHECK(std::memcmp(first.data(), all.data(), all.size() * sizeof(float)) == 0);
    });
  });
}

TEST_CASE("swiglu on meta records what crosses memory") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Tensor gate_up = shape_only(DType::bf16, {4, 16}), half = shape_only(DType::bf16, {4, 8});
  swiglu_forward(stream, {.gate_up = gate_up, .out = half});
  CHECK(recorder.bytes() == 3 * 64);
  swiglu_backward(stream, {.dout = half, .gate_up = gate_up, .dgate_up = gate_up});
  CHECK(recorder.bytes() == 8 * 64);
  swiglu_backward(stream, {.dout = half, .gate_up = gate_up, .dgate_up = gate_up, .out = half});
  CHECK(recorder.bytes() == 14 * 64);
}

TEST_CASE("swiglu refuses tensors that do not fit, and says which") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Tensor gate_up = shape_only(DType::bf16, {4, 16}), half = shape_only(DType::bf16, {4, 8}),
         odd = shape_only(DType::f32, {4, 15});
  Tensor ids = shape_only(DType::i32, {4, 16}), amax = shape_only(DType::u32, {1});
  auto forward = [&](const SwigluForward& args) { swiglu_forward(stream, args); };
  CHECK_THROWS_WITH(forward({.gate_up = ids, .out = half}),
                    "[swiglu_forward] gate_up is i32 [4, 16], expected f32 or bf16");
  CHECK_THROWS_WITH(forward({.gate_up = odd, .out = half}),
                    "[swiglu_forward] gate_up is f32 [4, 15], expected [N, 2F]: gate and up side by side");
  CHECK_THROWS_WITH(forward({.gate_up = gate_up, .out = gate_up}),
                    "[swiglu_forward] out is bf16 [4, 16], expected bf16 [4, 8]");
  CHECK_THROWS_WITH(forward({.gate_up = gate_up, .out = half, .amax = half}),
                    "[swiglu_forward] amax is bf16 [4, 8], expected u32 [1]");
  const SwigluBackward good{.dout = half, .gate_up = gate_up, .dgate_up = gate_up, .out = half, .amax = amax};
  swiglu_backward(stream, good);
  auto says = [&](auto&& change, const std::string& message) {
    SwigluBackward args = good;
    change(args);
    CHECK_THROWS_WITH(swiglu_backward(stream, args), "[swiglu_backward] " + message);
  };
  says([&](auto& a) { a.gate_up = odd; },
       "gate_up is f32 [4, 15], expected [N, 2F]: gate and up side by side");
  says([&](auto& a) { a.dout = gate_up; }, "dout is bf16 [4, 16], expected bf16 [4, 8]");
  says([&](auto& a) { a.dgate_up = half; }, "dgate_up is bf16 [4, 8], expected bf16 [4, 16] (like gate_up)");
  says([&](auto& a) { a.out = gate_up; }, "out is bf16 [4, 16], expected bf16 [4, 8]");
  says([&](auto& a) { a.amax = half; }, "amax is bf16 [4, 8], expected u32 [1]");
}
