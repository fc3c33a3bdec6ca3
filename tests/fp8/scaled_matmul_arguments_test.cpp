#include <utility>

#include "core/cost.h"
#include "tests/fp8/scaled_matmul_operands.h"

// What scaled products record, need and refuse.
using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;
using namespace ottava::test::scaled_matmul_operands;

TEST_CASE("scaled_matmul on meta records FP8 arithmetic and its workspaces") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  auto operand = [](int64_t rows, int64_t cols) {
    return Float8Tensor{{shape_only(DType::e4m3, {rows, cols}), shape_only(DType::f32, {1})}, {}};
  };
  ScaledMatmul args{.a = operand(32, 64), .b = operand(48, 64), .out = shape_only(DType::bf16, {32, 48})};
  scaled_matmul(stream, args);
  CHECK(recorder.flops(Precision::fp8) == 2.0 * 32 * 48 * 64);
  CHECK(recorder.flops(Precision::bf16) == 0);
  CHECK(recorder.bytes() == 32 * 64 + 48 * 64 + 2 * 4 + 32 * 48 * 2);
  CHECK(recorder.workspace_bytes() == scaled_matmul_inner_workspace_bytes(stream, args));
  // One scale goes into the product where oneDNN takes it, else sums wait for it in f32; scales of rows
  // always wait.
  const bool takes_scale = matmul_takes_scale(
      stream,
      {.a = shape_only(DType::bf16, {32, 64}), .b = shape_only(DType::bf16, {48, 64}), .out = args.out});
  CHECK(scaled_matmul_workspace_bytes(stream, args) ==
        2 * (32 * 64 + 48 * 64) + (takes_scale ? 0 : 4 * 32 * 48));
  ScaledMatmul by_rows = args;
  by_rows.a = {{shape_only(DType::e4m3, {32, 64}), shape_only(DType::f32, {32})}, {}, Granularity::row};
  CHECK(scaled_matmul_workspace_bytes(stream, by_rows) == 2 * (32 * 64 + 48 * 64) + 4 * 32 * 48);
  args.out = shape_only(DType::f32, {32, 48});
  CHECK(scaled_matmul_workspace_bytes(stream, args) == 2 * (32 * 64 + 48 * 64));
  Stream gpu = Stream::meta(recorder, {DeviceType::cuda, 0});
  CHECK(scaled_matmul_workspace_bytes(gpu, args) == 0);
  args.a = by_rows.a;
  CHECK(scaled_matmul_workspace_bytes(gpu, args) == 48 * 4);
  args.emulate = true;
  CHECK(scaled_matmul_workspace_bytes(gpu, args) == 2 * (32 * 64 + 48 * 64));
  args.emulate = false;
  args.kind = MatmulKind::input_gradient;
  args.b.rowwise.codes = shape_only(DType::e4m3, {64, 48});
  CHECK_THROWS_WITH(scaled_matmul(gpu, args),
                    Catch::Matchers::Contains("b has its contraction outside, and a GPU"));
}

TEST_CASE(
    "scaled_matmul on a GPU refuses addresses that tensor cores do not take, and too little workspace") {
  if (!has_gpu() || cuda::compute_capability(0) < 89) return skip("there is no GPU with FP8");
  for_each_device([](Stream& stream) {
    if (stream.type() != DeviceType::cuda) return;
    DeviceBuffer bytes(stream, DType::e4m3, {64, 64}), scales(stream, DType::f32, {64}),
        out(stream, DType::f32, {32, 32});
    auto at = [](const DeviceBuffer& buffer, int64_t offset, Shape shape) {
      return Tensor{static_cast<uint8_t*>(buffer.tensor().data) + offset, buffer.tensor().dtype, shape};
    };
    const Float8Tensor good{{at(bytes, 0, {32, 64}), at(scales, 0, {1})}, {}};
    const ScaledMatmul args{.a = good, .b = good, .out = out};
    auto refused = [&](const ScaledMatmul& bad, const char* what) {
      CHECK_THROWS_WITH(scaled_matmul(stream, bad), Catch::Matchers::Contains(what));
    };
    ScaledMatmul bad = args;
    bad.a.rowwise.codes = at(bytes, 8, {32, 64});
    refused(bad, "[scaled_matmul] a.codes at ");
    bad = args, bad.b.rowwise.scale_inverse = at(scales, 4, {1});
    refused(bad, "is not aligned to 16 bytes, which tensor cores need");
    bad = args, bad.emulate = true;
    refused(bad,
            "[scaled_matmul] workspace is f32 [], expected u8 [8192]: scaled_matmul_workspace_bytes tells");
    bad = args, bad.a.granularity = Granularity::row, bad.a.rowwise.scale_inverse = at(scales, 0, {32});
    refused(bad,
            "[scaled_matmul] workspace is f32 [], expected u8 [128]: scaled_matmul_workspace_bytes tells");
  });
}

TEST_CASE("scaled_matmul refuses what tensor cores cannot multiply, with the arithmetic") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  auto operand = [](int64_t rows, int64_t cols, Granularity g = Granularity::tensor,
                    DType format = DType::e4m3) {
    return Float8Tensor{
        {shape_only(format, {rows, cols}), shape_only(scale_dtype(g), scale_shape(g, rows, cols))}, {}, g};
  };
  auto out = [](int64_t m, int64_t n) { return shape_only(DType::f32, {m, n}); };
  auto refuses = [&](const ScaledMatmul& args, const char* message) {
    CHECK_THROWS_WITH(scaled_matmul(stream, args), message);
  };
  refuses({.a = operand(32, 64), .b = operand(564, 64), .out = out(32, 564)},
          "[scaled_matmul] outer extent of b is 564, not a multiple of 16: 564/16 = 35.25; run this product "
          "in bf16 or pad it");
  refuses({.a = operand(30, 64), .b = operand(64, 64), .out = out(30, 64)},
          "[scaled_matmul] outer extent of a is 30, not a multiple of 16: 30/16 = 1.875; run this product in "
          "bf16 or pad it");
  refuses({.a = operand(32, 72), .b = operand(64, 72), .out = out(32, 64)},
          "[scaled_matmul] the contraction is 72, not a multiple of 16: 72/16 = 4.5; run this product in "
          "bf16 or pad it");
  refuses({.a = operand(32, 48, Granularity::block_1x32),
           .b = operand(64, 48, Granularity::block_1x32),
           .out = out(32, 64)},
          "[scaled_matmul] the contraction is 48, not a multiple of 32: 48/32 = 1.5; run this product in "
          "bf16 or pad it");
  refuses({.a = operand(32, 64), .b = operand(64, 80), .out = out(32, 64)},
          "[scaled_matmul] contractions differ: a [32, 64], b [64, 80] (64 vs 80)");
  refuses({.a = operand(32, 64, Granularity::tensor, DType::e5m2),
           .b = operand(64, 64, Granularity::tensor, DType::e5m2),
           .out = out(32, 64)},
          "[scaled_matmul] a and b are both e5m2: at most one operand may be");
  refuses({.a = operand(32, 64, Granularity::block_128x128),
           .b = operand(64, 64, Granularity::block_128x128),
           .out = out(32, 64)},
          "[scaled_matmul] scales per 128x128 of a and per 128x128 of b do not go together");
  refuses({.a = operand(32, 64, Granularity::row),
           .b = operand(64, 64, Granularity::block_1x32),
           .out = out(32, 64)},
          "[scaled_matmul] scales per row of a and per 1x32 of b do not go together");
  refuses({.kind = MatmulKind::input_gradient,
           .a = operand(32, 64),
           .b = operand(64, 64, Granularity::row),
           .out = out(32, 64)},
          "[scaled_matmul] b has its contraction outside, where its row scales do not run along it: quantize "
          "the transpose");
  Float8Tensor columnwise = operand(64, 64);
  std::swap(columnwise.rowwise, columnwise.columnwise);
  refuses({.kind = MatmulKind::weight_gradient, .a = operand(64, 32), .b = columnwise, .out = out(32, 64)},
          "[scaled_matmul] a has its contraction outside and b inside: no layer needs that, transpose one of "
          "them");
  refuses({.a = operand(32, 64), .b = operand(64, 64), .out = out(32, 48)},
          "[scaled_matmul] out is f32 [32, 48], expected f32 [32, 64]");
  refuses({.a = operand(32, 64), .b = operand(64, 64), .out = shape_only(DType::u8, {32, 64})},
          "[scaled_matmul] out is u8 [32, 64], expected f32 or bf16");
  refuses({.a = operand(32, 64),
           .b = operand(64, 64),
           .out = shape_only(DType::bf16, {32, 64}),
           .accumulate = true},
          "[scaled_matmul] out is bf16 [32, 64], accumulating needs f32");
  ScaledMatmul bad{.a = operand(32, 64), .b = operand(64, 64), .out = out(32, 64)};
  bad.a.rowwise.scale_inverse = shape_only(DType::f32, {32});
  refuses(bad, "[scaled_matmul] a.scale_inverse is f32 [32], expected f32 [1]");
  bad.a.rowwise.codes = shape_only(DType::e4m3, {32});
  refuses(bad, "[scaled_matmul] a is e4m3 [32], expected a matrix");

  Stream cpu = Stream::cpu();
  const int64_t m = 16, k = 128;
  Operand a(cpu, normal_values(m * k, 1), m, k, {DType::e4m3, Granularity::block_1x128, true});
  Operand b(cpu, normal_values(m * k, 2), m, k, {DType::e4m3, Granularity::block_1x128, false});
  CHECK_THROWS_AS(run(cpu, product(MatmulKind::forward, a, b), DType::f32, m, m), NumericsError);
  CHECK_THROWS_WITH(run(cpu, product(MatmulKind::forward, a, b), DType::f32, m, m),
                    Catch::Matchers::Contains("not a power of two"));
  for (float extreme : {0x1p-118f, 0x1p121f}) {
    std::vector<float> inverses(static_cast<size_t>(m), extreme);
    a.inverse.upload(inverses);
    CHECK_THROWS_WITH(run(cpu, product(MatmulKind::forward, a, a), DType::f32, m, m),
                      Catch::Matchers::Contains("outside of [2^-117, 2^120]"));
  }
  for (float allowed : {0x1p-117f, 0x1p120f}) {
    std::vector<float> inverses(static_cast<size_t>(m), allowed);
    a.inverse.upload(inverses);
    CHECK_NOTHROW(run(cpu, product(MatmulKind::forward, a, a), DType::f32, m, m));
  }
  DeviceBuffer result(cpu, DType::f32, {m, m});
  CHECK_THROWS_WITH(
      scaled_matmul(cpu, {.a = a.over_columns(), .b = a.over_columns(), .out = result}),
      "[scaled_matmul] workspace is f32 [], expected u8 [8192]: scaled_matmul_workspace_bytes tells");
}
