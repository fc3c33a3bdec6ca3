#include "core/ops/matmul/matmul.h"

#include "core/cost.h"
#include "core/cpu/matmul_cache.h"
#include "tests/core/ops/matmul/matmul_problem.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("matmul on meta records FLOPs, bytes and the largest workspace") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Matmul args{.kind = MatmulKind::weight_gradient,
              .a = shape_only(DType::bf16, {64, 32}),
              .b = shape_only(DType::bf16, {64, 16}),
              .out = shape_only(DType::f32, {32, 16}),
              .accumulate = true};
  matmul(stream, args);
  CHECK(recorder.flops(Precision::bf16) == 2.0 * 64 * 32 * 16);
  CHECK(recorder.bytes() == 2.0 * (64 * 32 + 64 * 16) + 2 * 4.0 * 32 * 16);
  CHECK(recorder.workspace_bytes() == matmul_workspace_bytes(stream, args));
  Stream cpu = Stream::cpu();
  CHECK(matmul_workspace_bytes(cpu, args) == matmul_workspace_bytes(stream, args));
  args.a.dtype = args.b.dtype = DType::f32;
  matmul(stream, args);
  CHECK(recorder.flops(Precision::fp32) == 2.0 * 64 * 32 * 16);

  CostRecorder for_gpu;
  Stream planned = Stream::meta(for_gpu, {DeviceType::cuda, 0});
  matmul(planned, args);
  CHECK(for_gpu.workspace_bytes() == 32 << 20);

  const double before = recorder.bytes();
  add_bias(stream, args.a, shape_only(DType::f32, {32}));
  bias_gradient(stream, args.a, shape_only(DType::f32, {32}));
  CHECK(recorder.bytes() - before == 3.0 * 64 * 32 * 4);
  set_matmul_workspace(stream, shape_only(DType::u8, {64}));
}

TEST_CASE("matmul refuses what does not fit, and says what") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Matmul good{.kind = MatmulKind::forward,
                    .a = shape_only(DType::bf16, {128, 64}),
                    .b = shape_only(DType::bf16, {32, 64}),
                    .out = shape_only(DType::bf16, {128, 32})};
  auto says = [&](auto&& change, const std::string& message) {
    Matmul args = good;
    change(args);
    CHECK_THROWS_WITH(matmul(stream, args), "[matmul] " + message);
    CHECK_THROWS_AS(matmul(stream, args), ShapeError);
  };
  matmul(stream, good);
  says([](auto& m) { m.a_columns = {32, 96}; }, "columns [32, 96) are not a block of bf16 [128, 64]");
  says(
      [](auto& m) {
        m.out_columns = {0, 16};
      },
      "out is bf16 [128, 16], expected [128, 32] from a [128, 64], b [32, 64]");
  says([](auto& m) { m.a.dtype = DType::i32; }, "a is i32 [128, 64], expected f32 or bf16");
  says([](auto& m) { m.b.dtype = DType::f32; }, "b is f32 [32, 64], expected bf16 (like a)");
  says([](auto& m) { m.out.dtype = DType::u8; }, "out is u8 [128, 32], expected f32 or bf16");
  says([](auto& m) { m.a.dtype = m.b.dtype = DType::f32; }, "out is bf16 [128, 32], expected f32 (like a)");
  says([](auto& m) { m.accumulate = true; }, "out is bf16 [128, 32], accumulating needs f32");
  says([](auto& m) { m.result = MatmulResult::symmetric; },
       "a bf16 [128, 64], b bf16 [32, 64]: a symmetric result is of one tensor and itself, neither "
       "accumulated "
       "nor scaled, without blocks of columns");
  says(
      [](auto& m) {
        m.a.shape = {0, 64};
      },
      "a [0, 64], b [32, 64], out [128, 32]: each needs at least one element");
  says([](auto& m) { m.b.shape = {32, 60}; }, "inner dimensions differ: a [128, 64], b [32, 60] (64 vs 60)");
  says([](auto& m) { m.kind = MatmulKind::input_gradient; },
       "inner dimensions differ: a [128, 64], b [32, 64] (64 vs 32)");
  says(
      [](auto& m) {
        m.out.shape = {128, 31};
      },
      "out is bf16 [128, 31], expected [128, 32] from a [128, 64], b [32, 64]");

  const Tensor y = shape_only(DType::bf16, {4, 8});
  CHECK_THROWS_WITH(add_bias(stream, shape_only(DType::u8, {4, 8}), y),
                    "[add_bias] y is u8 [4, 8], expected f32 or bf16");
  CHECK_THROWS_WITH(add_bias(stream, y, shape_only(DType::f32, {8})),
                    "[add_bias] bias is f32 [8], expected bf16 [8]");
  CHECK_THROWS_WITH(bias_gradient(stream, shape_only(DType::u8, {4, 8}), y),
                    "[bias_gradient] dy is u8 [4, 8], expected f32 or bf16");
  CHECK_THROWS_WITH(bias_gradient(stream, y, shape_only(DType::bf16, {8})),
                    "[bias_gradient] dbias is bf16 [8], expected f32 [8]");
  CHECK_THROWS_WITH(set_matmul_workspace(stream, y),
                    "[set_matmul_workspace] workspace is bf16 [4, 8], expected u8 [32]");
}

TEST_CASE("matmul without enough workspace says how much it needs") {
  Stream stream = Stream::cpu();
  DeviceBuffer a(stream, DType::bf16, {64, 64}, normal_values(64 * 64, 1)), out(stream, DType::f32, {64, 64});
  const Matmul args{.kind = MatmulKind::forward, .a = a, .b = a, .out = out};
  stream.matmul_cache().set_products({.matmul = cpu::Bf16Products::widened});  // which always needs some
  const int64_t needed = matmul_workspace_bytes(stream, args);
  REQUIRE(needed > 0);
  CHECK_THROWS_WITH(
      matmul(stream, args),
      "[matmul] workspace has 0 bytes, " + std::to_string(needed) +
          " are needed: give set_matmul_workspace the largest matmul_workspace_bytes of all products");
  alignas(64) static uint8_t memory[128];
  CHECK_THROWS_AS(set_matmul_workspace(stream, view_of(memory + 1, {64})), MemoryError);
  CHECK_THROWS_WITH(set_matmul_workspace(stream, view_of(memory + 1, {64})),
                    Catch::Matchers::Contains("is not aligned to 64 bytes"));
}
