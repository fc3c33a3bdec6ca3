#include "apps/decide/workbench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/ops/elementwise.h"
#include "core/ops/host_values.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/rope.h"
#include "core/ops/swiglu.h"
#include "fp8/quantize.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

// What is compared is measured by turns.

using namespace ottava;

namespace {

struct Quantized {
  std::vector<int64_t> counters;  ///< elements, underflows, saturations
  std::vector<uint8_t> codes;
  int64_t with_at_least(int code) const {
    return std::ranges::count_if(codes, [&](uint8_t c) { return (c & 0x7f) >= code; });
  }
};

/// What the recorded operation quantizes when it is prepared to be timed.
Quantized timed_on_bench(const CostRecorder& recorder, Stream& stream, DType format) {
  RecordedOperation operation = recorder.operations().at(0);
  std::vector<Tensor> operands;
  operation.call.on = [&operands, on = operation.call.on](std::span<const Tensor> tensors) {
    operands.assign(tensors.begin(), tensors.end());
    return on(tensors);
  };
  Workbench bench(stream.device());
  prepare(operation, bench, 256)(stream);
  Quantized out;
  for (const Tensor& t : operands) {
    if (t.dtype == DType::i64) out.counters = host_values<int64_t>(stream, t);
    if (t.dtype == format) out.codes = host_values<uint8_t>(stream, {t.data, DType::u8, t.shape});
  }
  return out;
}

}  // namespace

TEST_CASE("numbers that operations are timed with are like those of training: none is zero or subnormal") {
  test::for_each_device([](Stream& stream) {
    Workbench bench(stream.device());
    for (const DType dtype : {DType::f32, DType::bf16}) {
      // On a stream that knows nothing of the one that wrote them.
      const Tensor written = bench.tensor(dtype, {64, 1024}), read = bench.zeros(DType::f32, {64, 1024});
      dtype == DType::f32 ? copy(stream, written, read) : cast(stream, written, read);
      std::vector<float> numbers(64 * 1024);
      copy_to_host(stream, read, numbers.data());
      stream.synchronize();
      CHECK(std::ranges::all_of(numbers, [](float x) { return std::isnormal(x); }));
      const auto positive = std::ranges::count_if(numbers, [](float x) { return x > 0; });
      CHECK(std::abs(static_cast<double>(positive) / 65536 - 0.5) < 0.05);
      const float largest = *std::ranges::max_element(numbers);
      CHECK((largest > 1.9f && largest < 2.1f));
    }
  });
}

TEST_CASE("numbers that are rotated in place keep their size, however often they are timed") {
  test::for_each_device([](Stream& stream) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      CostRecorder recorder;
      Stream meta = Stream::meta(recorder, stream.device());
      const AttentionHeads heads{4, 2, 16};
      rope(meta, {.qkv = {nullptr, dtype, {32, heads.row()}},
                  .table = {nullptr, DType::f32, {32, heads.head_dim}},
                  .heads = heads,
                  .sequence = 32});
      RecordedOperation operation = recorder.operations().at(0);
      Tensor rotated;
      operation.call.on = [&rotated, on = operation.call.on](std::span<const Tensor> tensors) {
        rotated = tensors[0];
        return on(tensors);
      };
      Workbench bench(stream.device());
      const auto run = prepare(operation, bench, 256);
      for (int i = 0; i < 1000; ++i) run(stream);
      const Tensor read = bench.zeros(DType::f32, rotated.shape);
      dtype == DType::f32 ? copy(stream, rotated, read) : cast(stream, rotated, read);
      std::vector<float> numbers(read.numel());
      copy_to_host(stream, read, numbers.data());
      stream.synchronize();
      CHECK(std::ranges::all_of(numbers, [](float x) { return std::isnormal(x) || x == 0; }));
      CHECK(std::ranges::all_of(numbers, [](float x) { return std::abs(x) < 100; }));
      const auto small = std::ranges::count_if(numbers, [](float x) { return std::abs(x) < 1e-6f; });
      CHECK(small < std::ssize(numbers) / 100);
    }
  });
}

TEST_CASE("numbers that results are added to are there when the bench hands them out") {
  test::for_each_device([](Stream& stream) {
    Workbench bench(stream.device());
    const Tensor zeros = bench.zeros(DType::f32, {1000});
    std::vector<float> numbers(1000, 1.0f);
    copy_to_host(stream, zeros, numbers.data());
    stream.synchronize();
    CHECK(std::ranges::count(numbers, 0.0f) == 1000);
  });
}

TEST_CASE(
    "numbers that are quantized to be timed lose nothing and hardly reach the largest code, as in training") {
  test::for_each_device([](Stream& stream) {
    for (const auto& [format, largest_code] : {std::pair{DType::e4m3, 0x7e}, {DType::e5m2, 0x7b}}) {
      for (const fp8::Granularity granularity : {fp8::Granularity::tensor, fp8::Granularity::row}) {
        INFO(name_of(format) << ", " << name_of(granularity));
        const bool by_tensor = granularity == fp8::Granularity::tensor;
        const Shape shape{128, 512}, scales = by_tensor ? Shape{1} : Shape{512};
        CostRecorder recorder;
        Stream meta = Stream::meta(recorder, stream.device());
        fp8::quantize(meta, {.x = {nullptr, DType::bf16, shape},
                             .granularity = granularity,
                             .amax = by_tensor ? Tensor{nullptr, DType::u32, {1}} : Tensor{},
                             .column_amax = by_tensor ? Tensor{} : Tensor{nullptr, DType::u32, {512}},
                             .transposed = {{nullptr, format, {512, 128}}, {nullptr, DType::f32, scales}},
                             .counters = {nullptr, DType::i64, {3}}});
        const Quantized quantized = timed_on_bench(recorder, stream, format);
        CHECK(quantized.counters == std::vector<int64_t>{128 * 512, 0, 0});
        REQUIRE(quantized.codes.size() == 128 * 512);
        CHECK(quantized.with_at_least(largest_code) == 0);
      }
    }
  });
}

TEST_CASE(
    "what norms and SwiGLU quantize with one scale to be timed hardly reaches the largest code either") {
  test::for_each_device([](Stream& stream) {
    constexpr int64_t kRows = 128, kColumns = 512;
    for (const auto& [format, largest_code] : {std::pair{DType::e4m3, 0x7e}, {DType::e5m2, 0x7b}}) {
      const auto matrix = [](int64_t columns) { return Tensor{nullptr, DType::bf16, {kRows, columns}}; };
      const auto row = [](DType dtype, int64_t columns) { return Tensor{nullptr, dtype, {columns}}; };
      const auto output = [&](int64_t columns) {
        return fp8::RowOutput{.granularity = fp8::Granularity::tensor,
                              .amax = row(DType::u32, 1),
                              .out = {{nullptr, format, {kRows, columns}}, row(DType::f32, 1)},
                              .counters = row(DType::i64, 3)};
      };
      const Tensor x = matrix(kColumns), weight = row(DType::bf16, kColumns), rstd = row(DType::f32, kRows);
      const std::vector<std::function<void(Stream&)>> operations = {
          [&](Stream& meta) {
            rms_norm_forward(meta, {.x = x, .weight = weight, .rstd = rstd, .float8 = output(kColumns)});
          },
          [&](Stream& meta) {
            rms_norm_backward(meta, {.dy = x,
                                     .x = x,
                                     .weight = weight,
                                     .rstd = rstd,
                                     .dresidual = x,
                                     .dx = x,
                                     .dweight = row(DType::f32, kColumns),
                                     .workspace = {nullptr, DType::f32, rms_norm_workspace(meta, kColumns)},
                                     .float8 = output(kColumns)});
          },
          [&](Stream& meta) {
            swiglu_forward(meta, {.gate_up = matrix(2 * kColumns), .float8 = output(kColumns)});
          },
          [&](Stream& meta) {
            swiglu_backward(meta, {.dout = x,
                                   .gate_up = matrix(2 * kColumns),
                                   .dgate_up = matrix(2 * kColumns),
                                   .float8 = output(2 * kColumns)});
          }};
      for (const auto& record : operations) {
        CostRecorder recorder;
        Stream meta = Stream::meta(recorder, stream.device());
        record(meta);
        INFO(recorder.operations().at(0).op << ", " << name_of(format));
        const Quantized quantized = timed_on_bench(recorder, stream, format);
        const auto saturated = quantized.counters.at(2);
        CHECK(saturated == 0);
        CHECK(quantized.codes.size() >= kRows * kColumns);
        CHECK(quantized.with_at_least(largest_code) == 0);
      }
    }
  });
}

TEST_CASE("two kinds of work are timed by turns, so that a slow beginning decides nothing") {
  using std::chrono::milliseconds;
  std::string calls;
  Stream stream = Stream::cpu();
  // The first is slow for as long as its measurement alone used to take.
  const auto [first, second] = best_milliseconds_by_turns(
      stream,
      [&] {
        calls += 'a';
        if (calls.size() <= 16) std::this_thread::sleep_for(milliseconds(8));
      },
      [&] {
        calls += 'b';
        std::this_thread::sleep_for(milliseconds(4));
      });
  CHECK(first < second);
  CHECK(calls.substr(0, 6) == "ababab");
  CHECK(calls.size() % 2 == 0);
}
