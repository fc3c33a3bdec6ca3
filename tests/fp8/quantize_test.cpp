#include "fp8/quantize.h"

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "tests/fp8/quantizing.h"
#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

TEST_CASE(
    "quantize: bytes, scales and counts of every granularity equal the reference, plain and transposed") {
  for_each_device([](Stream& stream) {
    for_each_recipe([&](ReferenceRecipe recipe) {
      for (Size size : kSizes) {
        const bool in_pieces =
            recipe.granularity == Granularity::row || recipe.granularity == Granularity::block_1x128;
        if (size.cols > 16384 && !in_pieces) continue;
        const auto values = spread_values(size.rows * size.cols, 5);
        const auto want = reference_quantize(values, size.rows, size.cols, recipe);
        const auto transposed_want =
            reference_quantize(test::transposed(values, size.rows, size.cols), size.cols, size.rows, recipe);
        for (DType dtype : {DType::f32, DType::bf16}) {
          INFO(size.rows << " x " << size.cols << " " << name_of(dtype));

          Quantizing both(stream, values, size, recipe, dtype);
          quantize(stream, both.args);
          CHECK(is_exactly(want, both.out.codes(), both.out.inverses()));
          CHECK(is_exactly(transposed_want, both.transposed.codes(), both.transposed.inverses()));
          CHECK(both.counters.download_as<int64_t>() ==
                std::vector<int64_t>{size.rows * size.cols, want.underflow, want.saturation});
          CHECK(both.non_finite.download_as<uint32_t>()[0] == 0);
          CHECK(both.largest.download_as<uint32_t>()[0] == largest_bits(values));
          quantize(stream, both.args);  // counters add up
          CHECK(both.counters.download_as<int64_t>()[1] == 2 * want.underflow);

          Quantizing plain(stream, values, size, recipe, dtype);
          plain.args.transposed = {};
          quantize(stream, plain.args);
          CHECK(plain.out.codes() == both.out.codes());
          CHECK(plain.out.inverses() == both.out.inverses());
          CHECK(plain.largest.download_as<uint32_t>()[0] == largest_bits(values));

          Quantizing transposed_only(stream, values, size, recipe, dtype);
          transposed_only.args.out = {};
          transposed_only.args.counters = {};
          transposed_only.args.largest = {};
          quantize(stream, transposed_only.args);
          CHECK(transposed_only.counters.download_as<int64_t>()[0] == 0);
          CHECK(transposed_only.largest.download_as<uint32_t>()[0] == 0);
          transposed_only.args.counters = transposed_only.counters;
          transposed_only.args.largest = transposed_only.largest;
          quantize(stream, transposed_only.args);
          CHECK(transposed_only.largest.download_as<uint32_t>()[0] == largest_bits(values));
          CHECK(transposed_only.transposed.codes() == both.transposed.codes());
          CHECK(transposed_only.transposed.inverses() == both.transposed.inverses());
          CHECK(transposed_only.counters.download_as<int64_t>()[1] == transposed_want.underflow);
        }
      }
    });
  });
}

TEST_CASE("quantize: a block of columns gives what its copy gives, in every granularity") {
  for_each_device([](Stream& stream) {
    for_each_recipe([&](ReferenceRecipe recipe) {
      for (Size size : {Size{33, 50}, Size{144, 304}, Size{16, 2100}}) {
        const auto values = spread_values(size.rows * size.cols, 5);
        for (int64_t before : {16, 3}) {
          const int64_t width = before + size.cols + 29;
          std::vector<float> wide(static_cast<size_t>(size.rows * width), 1e30f);
          for (int64_t i = 0; i < size.rows * size.cols; ++i)
            wide[static_cast<size_t>(i / size.cols * width + before + i % size.cols)] =
                values[static_cast<size_t>(i)];
          for (DType dtype : {DType::f32, DType::bf16}) {
            INFO(size.rows << " x " << size.cols << " from " << before << " " << name_of(dtype));
            Quantizing copy(stream, values, size, recipe, dtype), block(stream, values, size, recipe, dtype);
            DeviceBuffer x(stream, dtype, {size.rows, width}, wide);
            block.args.x = x, block.args.x_columns = {before, before + size.cols};
            if (!block.args.amax.empty()) {
              block.amax_1.upload_as<uint32_t>(std::array{0u});
              fp8::amax(stream, x, block.amax_1, block.args.x_columns);
            }
            if (!block.args.column_amax.empty()) {
              block.columns.upload_as<uint32_t>(std::vector<uint32_t>(static_cast<size_t>(size.cols), 0u));
              fp8::column_amax(stream, x, block.columns, block.args.x_columns);
            }
            quantize(stream, copy.args);
            quantize(stream, block.args);
            CHECK(block.out.codes() == copy.out.codes());
            CHECK(block.out.raw_inverses() == copy.out.raw_inverses());
            CHECK(block.transposed.codes() == copy.transposed.codes());
            CHECK(block.transposed.raw_inverses() == copy.transposed.raw_inverses());
            CHECK(block.counters.download_as<int64_t>() == copy.counters.download_as<int64_t>());
            CHECK(block.largest.download_as<uint32_t>() == copy.largest.download_as<uint32_t>());
          }
        }
      }
    });
  });
}

TEST_CASE("quantize: scales and their padding are the CPU's on every device, byte for byte") {
  for_each_device([](Stream& stream) {
    Stream cpu = Stream::cpu();
    for_each_recipe([&](ReferenceRecipe recipe) {
      for (Size size : {Size{5, 7}, Size{150, 290}, Size{144, 304}, Size{384, 640}}) {
        INFO(size.rows << " x " << size.cols);
        const auto values = spread_values(size.rows * size.cols, 12);
        Quantizing want(cpu, values, size, recipe, DType::bf16),
            got(stream, values, size, recipe, DType::bf16);
        quantize(cpu, want.args);
        quantize(stream, got.args);
        CHECK(got.out.raw_inverses() == want.out.raw_inverses());
        CHECK(got.transposed.raw_inverses() == want.transposed.raw_inverses());
        CHECK(got.out.codes() == want.out.codes());
        CHECK(got.transposed.codes() == want.transposed.codes());
      }
    });
  });
}

TEST_CASE("quantize: an f32 weight and its bf16 copy give the same codes") {
  for_each_device([](Stream& stream) {
    const Size size{40, 72};
    const auto master = normal_values(size.rows * size.cols, 11);  // not representable in bf16
    std::vector<float> rounded;
    for (float x : master) rounded.push_back(static_cast<float>(bf16(x)));
    for_each_recipe([&](ReferenceRecipe recipe) {
      Quantizing a(stream, master, size, recipe, DType::f32), b(stream, rounded, size, recipe, DType::bf16);
      quantize(stream, a.args);
      quantize(stream, b.args);
      CHECK(a.out.codes() == b.out.codes());
      CHECK(a.out.inverses() == b.out.inverses());
      CHECK(a.transposed.codes() == b.transposed.codes());
    });
  });
}

TEST_CASE("quantize: mutations of scale, format and group do not pass for a quantization") {
  for_each_device([](Stream& stream) {
    const Size size{48, 160};
    const auto values = spread_values(size.rows * size.cols, 3);
    const ReferenceRecipe dy{DType::e5m2, Granularity::tensor, false},
        x{DType::e4m3, Granularity::tensor, false};
    struct Result {
      std::vector<uint8_t> codes;
      std::vector<float> inverses;
    };
    auto run = [&](ReferenceRecipe recipe, std::optional<float> amax = {}) {
      Quantizing q(stream, values, size, recipe, DType::bf16);
      if (amax) q.amax_1.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(*amax)});
      quantize(stream, q.args);
      return Result{q.out.codes(), q.out.inverses()};
    };
    auto passes = [&](ReferenceRecipe recipe, const Result& r) {
      return is_exactly(reference_quantize(values, size.rows, size.cols, recipe), r.codes, r.inverses);
    };
    const float amax = std::bit_cast<float>(largest_bits(values));
    const Result good = run(dy);
    CHECK(passes(dy, good));
    CHECK(passes(x, run(x)));
    CHECK_FALSE(passes(dy, run(dy, amax * (57344.0f / 448.0f))));  // E4M3's maximum used with E5M2
    CHECK_FALSE(passes(x, run(x, amax * 0.75f)));                  // a scale of an earlier tensor, too large
    CHECK_FALSE(passes(x, run(x, amax * 1.5f)));                   // and too small
    CHECK_FALSE(passes(dy, run(x)));                               // E4M3 where E5M2 belongs
    Result swapped = good;
    for (float& inverse : swapped.inverses) inverse = 1.0f / inverse;
    CHECK_FALSE(passes(dy, swapped));
    for (Granularity wrong : {Granularity::row, Granularity::block_1x128, Granularity::block_128x128}) {
      CHECK_FALSE(passes(x, run({DType::e4m3, wrong, false})));
      CHECK_FALSE(passes({DType::e4m3, wrong, false}, run(x)));
    }
  });
}

TEST_CASE("quantize: turning the matrix and quantizing commute for tensor and 128x128") {
  for_each_device([](Stream& stream) {
    const Size size{150, 290};
    const auto values = spread_values(size.rows * size.cols, 8);
    for (Granularity granularity : {Granularity::tensor, Granularity::block_128x128}) {
      Quantizing q(stream, values, size, {DType::e4m3, granularity, true}, DType::bf16);
      quantize(stream, q.args);
      CHECK(q.transposed.codes() == test::transposed(q.out.codes(), size.rows, size.cols));
      DeviceBuffer transposed(stream, DType::e4m3, {size.cols, size.rows});
      transpose_codes(stream, q.args.out.codes, transposed);
      CHECK(transposed.download_as<uint8_t>() == q.transposed.codes());
    }
  });
}

TEST_CASE("quantize: scales of 128x128 are transposed with the codes, and their padding is zero") {
  for_each_device([](Stream& stream) {
    for (Size size : {Size{150, 290}, Size{128, 1024}, Size{700, 16}, Size{513, 1153}}) {
      INFO(size.rows << " x " << size.cols);
      DeviceBuffer x(stream, DType::bf16, {size.rows, size.cols}, spread_values(size.rows * size.cols, 21));
      auto shape = [](int64_t rows, int64_t cols) {
        return scale_shape(Granularity::block_128x128, rows, cols);
      };
      DeviceBuffer bytes(stream, DType::e4m3, {size.rows, size.cols}),
          turned_bytes(stream, DType::e4m3, {size.cols, size.rows});
      DeviceBuffer scales(stream, DType::f32, shape(size.rows, size.cols)),
          want(stream, DType::f32, shape(size.cols, size.rows)),
          transposed(stream, DType::f32, shape(size.cols, size.rows));
      quantize(stream, {.x = x,
                        .granularity = Granularity::block_128x128,
                        .rounding = ScaleRounding::down_to_power_of_two,
                        .out = {bytes, scales},
                        .transposed = {turned_bytes, want}});
      transpose_block_scales(stream, scales, {size.rows, size.cols}, transposed);
      CHECK(transposed.floats() == want.floats());
    }
  });
}

TEST_CASE(
    "quantize: with powers of two, blocks along the other axis hold the same values unless they underflow") {
  for_each_device([](Stream& stream) {
    const Size size{256, 256};
    auto values = normal_values(size.rows * size.cols, 21, DType::bf16);
    for (float& x : values)
      x = x == 0 ? 1.0f : std::copysign(std::max(std::fabs(x), 0.1f), x), x = static_cast<float>(bf16(x));
    auto changed = [&](bool power_of_two) {
      Quantizing q(stream, values, size, {DType::e4m3, Granularity::block_1x128, power_of_two}, DType::bf16);
      quantize(stream, q.args);
      DeviceBuffer along(stream, DType::f32, {size.rows, size.cols}),
          across(stream, DType::f32, {size.cols, size.rows});
      dequantize(stream, q.out.view(), Granularity::block_1x128, along);
      dequantize(stream, q.transposed.view(), Granularity::block_1x128, across);
      const auto a = along.floats(), b = test::transposed(across.floats(), size.cols, size.rows);
      int64_t count = 0;
      for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
      return count;
    };
    CHECK(changed(true) == 0);
    CHECK(changed(false) > size.rows * size.cols / 2);
  });
}

TEST_CASE("quantize: with powers of two, granularities differ in what underflows and in no other value") {
  constexpr Granularity kTensor = Granularity::tensor, kRow = Granularity::row,
                        kLine = Granularity::block_1x128, kSquare = Granularity::block_128x128;
  constexpr float kTiny = 0x1p-24f;
  struct Region {
    int64_t row, rows, col, cols;
    std::vector<Granularity> lost_by;
  };
  // Values near 1 but in these regions, each of which shares the scale of values near 1 in some
  // granularities.
  const std::vector<Region> regions = {{0, 1, 32, 32, {kTensor, kRow, kLine, kSquare}},
                                       {1, 1, 128, 128, {kTensor, kRow, kSquare}},
                                       {2, 1, 0, 256, {kTensor, kSquare}},
                                       {128, 128, 128, 128, {kTensor, kRow}}};
  const Size size{256, 256};
  std::vector<float> values = normal_values(size.rows * size.cols, 22, DType::bf16);
  for (float& x : values) x = std::copysign(std::max(std::fabs(x), 0.125f), x);
  std::vector<const Region*> region_of(values.size());
  for (const Region& region : regions) {
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      for (int64_t col = region.col; col < region.col + region.cols; ++col) {
        const auto i = static_cast<size_t>(row * size.cols + col);
        values[i] *= kTiny;
        region_of[i] = &region;
      }
    }
  }
  for_each_device([&](Stream& stream) {
    auto kept = [&](Granularity granularity) {
      Quantizing q(stream, values, size, {DType::e4m3, granularity, true}, DType::bf16);
      quantize(stream, q.args);
      DeviceBuffer y(stream, DType::f32, {size.rows, size.cols});
      dequantize(stream, q.out.view(), granularity, y);
      return y.floats();
    };
    const std::vector<float> finest = kept(Granularity::block_1x32);
    CHECK(std::ranges::count(finest, 0.0f) == 0);
    for (Granularity granularity : {kTensor, kRow, kLine, kSquare}) {
      INFO(name_of(granularity));
      const std::vector<float> got = kept(granularity);
      int64_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const bool is_lost = region_of[i] && std::ranges::count(region_of[i]->lost_by, granularity) > 0;
        wrong += got[i] != (is_lost ? 0.0f : finest[i]);
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("quantize: zeros, stale scales, infinities and NaN") {
  for_each_device([](Stream& stream) {
    const Size size{20, 140};
    const std::vector<float> zeros(static_cast<size_t>(size.rows * size.cols), 0.0f);
    for_each_recipe([&](ReferenceRecipe recipe) {
      Quantizing q(stream, zeros, size, recipe, DType::bf16);
      quantize(stream, q.args);
      for (uint8_t code : q.out.codes()) REQUIRE(code == 0);
      for (float inverse : q.out.inverses()) REQUIRE(std::isnormal(inverse));
      CHECK(q.counters.download_as<int64_t>()[1] == 0);

      for (float bad : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
        auto values = spread_values(size.rows * size.cols, 2);
        const auto at = static_cast<size_t>(7 * size.cols + 133);
        values[at] = bad;
        Quantizing r(stream, values, size, recipe, DType::bf16);
        quantize(stream, r.args);
        CHECK(r.non_finite.download_as<uint32_t>()[0] == 1);
        const uint32_t largest = r.largest.download_as<uint32_t>()[0];
        CHECK((std::isnan(bad) ? largest > kInfinityBits : largest == kInfinityBits));
        CHECK(r.out.inverses()[at] == 1.0f);
        const Format& format = format_of(recipe.format);
        const int want = std::isnan(bad) ? 0x7f : bad > 0 ? format.max_code : format.max_code | 0x80;
        CHECK(r.out.codes()[at] == want);
        CHECK(r.counters.download_as<int64_t>()[2] >= 1);
      }
    });
    // A scale that is too large for the data, as a history may give: saturated and counted.
    const auto values = normal_values(size.rows * size.cols, 6, DType::bf16);
    Quantizing stale(stream, values, size, {}, DType::bf16);
    const float small = std::bit_cast<float>(largest_bits(values)) / 4;
    stale.amax_1.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(small)});
    quantize(stream, stale.args);
    int64_t past = 0;
    for (float x : values) past += std::fabs(x * (448.0f / small)) > 464;
    CHECK(past > 0);
    CHECK(stale.counters.download_as<int64_t>()[2] == past);
    CHECK(stale.non_finite.download_as<uint32_t>()[0] == 0);
    CHECK(stale.largest.download_as<uint32_t>()[0] ==
          largest_bits(values));  // of the data, whatever the scale is made from
  });
}

TEST_CASE("quantize and amax are the same for any number of threads, and from run to run") {
  for_each_device([](Stream& stream) {
    const Size size{259, 300};
    const auto values = spread_values(size.rows * size.cols, 13);
    for_each_recipe([&](ReferenceRecipe recipe) {
      std::vector<uint8_t> first;
      std::vector<int64_t> first_counts;
      for_each_thread_count([&](int) {
        Quantizing q(stream, values, size, recipe, DType::bf16);
        quantize(stream, q.args);
        auto all = q.out.codes();
        for (uint8_t code : q.transposed.codes()) all.push_back(code);
        if (first.empty()) first = all, first_counts = q.counters.download_as<int64_t>();
        CHECK(all == first);
        CHECK(q.counters.download_as<int64_t>() == first_counts);
      });
    });
  });
}
