#include "core/cost.h"
#include "core/float8/granularity.h"
#include "fp8/quantize.h"
#include "tests/support/catch.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

TEST_CASE("scales lie where cuBLASLt reads them") {
  CHECK(scale_shape(Granularity::tensor, 5, 7) == Shape{1});
  CHECK(scale_shape(Granularity::row, 5, 7) == Shape{5});
  CHECK(scale_shape(Granularity::block_1x128, 5, 300) == Shape{3, 5});
  for (int64_t blocks = 1; blocks <= 9; ++blocks) {
    CHECK(scale_shape(Granularity::block_128x128, 129, blocks * 128) == Shape{2, blocks <= 4   ? 4
                                                                                 : blocks <= 8 ? 8
                                                                                               : 12});
  }
  CHECK(scale_shape(Granularity::block_1x32, 129, 160) == Shape{2, 2, 512});
  CHECK(scale_index(Granularity::block_1x128, {5, 300}, 4, 130) == 1 * 5 + 4);
  CHECK(scale_index(Granularity::block_128x128, {300, 700}, 130, 650) == 1 * 8 + 5);
  // Row 37 of a tile: (37 % 32) * 16 + 37 / 32 * 4; block 5 is the second of the next tile.
  CHECK(scale_index(Granularity::block_1x32, {256, 256}, 128 + 37, 5 * 32) ==
        (1 * 2 + 1) * 512 + 5 * 16 + 4 + 1);
}

TEST_CASE("quantize on meta records what crosses memory") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {64, 256}), amax_1 = shape_only(DType::u32, {1});
  const Float8Codes out{shape_only(DType::e4m3, {64, 256}), shape_only(DType::f32, {1})};
  const double n = 64 * 256;
  fp8::amax(stream, x, amax_1);
  CHECK(recorder.bytes() == 2 * n);
  recorder.clear();
  quantize(stream, {.x = x, .amax = amax_1, .out = out});
  CHECK(recorder.bytes() == 3 * n + 4);
  recorder.clear();
  const Float8Codes rows{shape_only(DType::e4m3, {64, 256}), shape_only(DType::f32, {64})},
      columns{shape_only(DType::e4m3, {256, 64}), shape_only(DType::f32, {256})};
  column_amax(stream, x, shape_only(DType::u32, {256}));
  CHECK(recorder.bytes() == 2 * n);
  recorder.clear();
  quantize(stream, {.x = x,
                    .granularity = Granularity::row,
                    .column_amax = shape_only(DType::u32, {256}),
                    .out = rows,
                    .transposed = columns});
  CHECK(recorder.bytes() == 6 * n + 4 * 64 + 4 * 256);
  recorder.clear();
  dequantize(stream, out, Granularity::tensor, x);
  CHECK(recorder.bytes() == 3 * n + 4);
  recorder.clear();
  transpose_codes(stream, out.codes, columns.codes);
  CHECK(recorder.bytes() == 2 * n);
}

TEST_CASE("quantize refuses what does not fit, and says which") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {4, 8}), one = shape_only(DType::u32, {1});
  const Float8Codes out{shape_only(DType::e4m3, {4, 8}), shape_only(DType::f32, {1})};
  const Quantize good{.x = x, .amax = one, .out = out};
  quantize(stream, good);
  auto refuses = [&](const Quantize& args, const char* message) {
    CHECK_THROWS_WITH(quantize(stream, args), message);
  };
  auto args = good;
  args.x = shape_only(DType::i32, {4, 8});
  refuses(args, "[quantize] x is i32 [4, 8], expected f32 or bf16");
  args = good, args.x = shape_only(DType::bf16, {4});
  refuses(args, "[quantize] x is bf16 [4], expected a matrix");
  args = good, args.out = {};
  refuses(args, "[quantize] nothing to write: give out, transposed or both");
  args = good, args.out.codes = shape_only(DType::e4m3, {8, 4});
  refuses(args, "[quantize] out.codes is e4m3 [8, 4], expected e4m3 [4, 8]");
  args = good, args.out.codes = shape_only(DType::u8, {4, 8});
  refuses(args, "[fp8] u8 is not an FP8 format: expected e4m3 or e5m2");
  args = good, args.out.scale_inverse = shape_only(DType::f32, {4});
  refuses(args, "[quantize] out.scale_inverse is f32 [4], expected f32 [1]");
  args = good, args.transposed = {shape_only(DType::e5m2, {8, 4}), shape_only(DType::f32, {1})};
  refuses(args, "[quantize] transposed is e5m2, expected e4m3 (like out)");
  args = good, args.amax = {};
  refuses(args, "[quantize] amax is f32 [], expected u32 [1]");
  args = good, args.granularity = Granularity::row, args.out.scale_inverse = shape_only(DType::f32, {4});
  refuses(args, "[quantize] amax is given, but granularity row measures its own");
  args.amax = {}, args.transposed = {shape_only(DType::e4m3, {8, 4}), shape_only(DType::f32, {8})};
  refuses(args, "[quantize] column_amax is f32 [], expected u32 [8]");
  args = {.x = x,
          .granularity = Granularity::block_1x32,
          .out = {shape_only(DType::e4m3, {4, 8}), shape_only(DType::e8m0, {1, 1, 512})}};
  refuses(args,
          "[quantize] granularity 1x32 stores scales as e8m0, which holds only powers of two: set rounding");
  args = good, args.counters = shape_only(DType::i64, {2});
  refuses(args, "[quantize] counters is i64 [2], expected i64 [3]");
  args = good, args.non_finite = shape_only(DType::f32, {1});
  refuses(args, "[quantize] non_finite is f32 [1], expected u32 [1]");
  args = good, args.largest = shape_only(DType::u32, {2});
  refuses(args, "[quantize] largest is u32 [2], expected u32 [1]");
  CHECK_THROWS_WITH(fp8::amax(stream, x, x), "[amax] amax is bf16 [4, 8], expected u32 [1]");
  CHECK_THROWS_WITH(column_amax(stream, x, one), "[column_amax] amax is u32 [1], expected u32 [8]");
  CHECK_THROWS_WITH(dequantize(stream, out, Granularity::tensor, shape_only(DType::bf16, {8, 4})),
                    "[dequantize] x.codes is e4m3 [4, 8], expected e4m3 [8, 4]");
  CHECK_THROWS_WITH(transpose_codes(stream, x, x),
                    "[transpose_codes] from is bf16 [4, 8], expected codes of one byte");
  CHECK_THROWS_WITH(transpose_codes(stream, out.codes, out.codes),
                    "[transpose_codes] to is e4m3 [4, 8], expected e4m3 [8, 4]");
  const Tensor tall = shape_only(DType::f32, {3, 4}), wide = shape_only(DType::f32, {1, 4});
  transpose_block_scales(stream, tall, {300, 100}, wide);
  CHECK_THROWS_WITH(transpose_block_scales(stream, wide, {300, 100}, wide),
                    "[transpose_block_scales] from is f32 [1, 4], expected f32 [3, 4]");
  CHECK_THROWS_WITH(transpose_block_scales(stream, tall, {300, 100}, tall),
                    "[transpose_block_scales] to is f32 [3, 4], expected f32 [1, 4]");
}
