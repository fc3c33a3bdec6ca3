#include "fp8/quantize.h"

#include <array>
#include <limits>
#include <optional>
#include <random>

#include "core/cost.h"
#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

constexpr Granularity kGranularities[] = {Granularity::tensor, Granularity::row, Granularity::block_1x128,
                                          Granularity::block_128x128, Granularity::block_1x32};
struct Size {
  int64_t rows, cols;
};
// One element, below a vector, ragged in both directions, whole tiles, one past them, parts of tiles in whole
// vectors, rows longer than a piece of blocks.
const Size kSizes[] = {{1, 1},    {3, 7},     {16, 16},  {33, 50},  {129, 257},
                       {260, 40}, {144, 304}, {2, 4200}, {1, 16500}};

/// Values over many binades, with zeros, so that groups differ and some elements underflow.
std::vector<float> spread_values(int64_t n, uint64_t seed) {
  auto x = normal_values(n, seed);
  std::mt19937_64 generator(seed + 99);
  for (float& v : x) {
    v *= std::exp2(static_cast<float>(generator() % 24) - 12);
    if (generator() % 50 == 0) v = 0;
    v = static_cast<float>(bf16(v));
  }
  return x;
}

/// What quantize() made, on the host.
struct Made {
  Made(Stream& stream, ReferenceRecipe recipe, Shape shape)
      : granularity(recipe.granularity),
        bytes(stream, recipe.format, shape),
        inverse(stream, scale_dtype(granularity), scale_shape(granularity, shape.rows(), shape.cols())) {}
  Quantized view() const { return {bytes, inverse}; }
  std::vector<uint8_t> codes() const { return bytes.download_as<uint8_t>(); }
  /// As stored, padding included.
  std::vector<uint32_t> raw_inverses() const {
    if (granularity != Granularity::block_1x32) {
      std::vector<uint32_t> bits;
      for (float x : inverse.download_as<float>()) bits.push_back(std::bit_cast<uint32_t>(x));
      return bits;
    }
    const auto bytes = inverse.download_as<uint8_t>();
    return {bytes.begin(), bytes.end()};
  }
  /// Per element.
  std::vector<float> inverses() const {
    std::vector<float> all;
    const Shape shape = bytes.tensor().shape;
    const bool mx = granularity == Granularity::block_1x32;
    const auto e8m0 = mx ? inverse.download_as<uint8_t>() : std::vector<uint8_t>{};
    const auto f32 = mx ? std::vector<float>{} : inverse.download_as<float>();
    for (int64_t r = 0; r < shape.rows(); ++r) {
      for (int64_t c = 0; c < shape.cols(); ++c) {
        const auto i = static_cast<size_t>(scale_index(granularity, shape, r, c));
        all.push_back(mx ? decode_e8m0(e8m0[i]) : f32[i]);
      }
    }
    return all;
  }
  Granularity granularity;
  DeviceBuffer bytes, inverse;
};

ScaleRounding rounding_of(ReferenceRecipe recipe) {
  return recipe.power_of_two ? ScaleRounding::down_to_power_of_two : ScaleRounding::none;
}

/// The judge of bytes and scales: both exactly as the reference makes them from x. Mutations below must not
/// pass it.
bool is_exactly(const ReferenceQuantized& want, const std::vector<uint8_t>& codes,
                const std::vector<float>& inverses) {
  return codes == want.codes && inverses == want.inverses;
}

/// Quantizes x in every way that is asked for.
struct Quantizing {
  Quantizing(Stream& stream, const std::vector<float>& values, Size size, ReferenceRecipe recipe, DType dtype)
      : x(stream, dtype, {size.rows, size.cols}, values),
        out(stream, recipe, {size.rows, size.cols}),
        transposed(stream, recipe, {size.cols, size.rows}),
        amax_1(stream, DType::u32, {1}),
        columns(stream, DType::u32, {size.cols}),
        counters(stream, DType::i64, {3}),
        non_finite(stream, DType::u32, {1}),
        largest(stream, DType::u32, {1}),
        args{.x = x,
             .granularity = recipe.granularity,
             .rounding = rounding_of(recipe),
             .out = out.view(),
             .transposed = transposed.view(),
             .counters = counters,
             .non_finite = non_finite,
             .largest = largest} {
    largest.upload_as<uint32_t>(std::array{0u});
    amax_1.upload_as<uint32_t>(std::array{0u});
    columns.upload_as<uint32_t>(std::vector<uint32_t>(static_cast<size_t>(size.cols), 0u));
    counters.upload_as<int64_t>(std::array<int64_t, 3>{0, 0, 0});
    non_finite.upload_as<uint32_t>(std::array{0u});
    if (recipe.granularity == Granularity::tensor) {
      fp8::amax(stream, x, amax_1);
      args.amax = amax_1;
    }
    if (recipe.granularity == Granularity::row) {
      fp8::column_amax(stream, x, columns);
      args.column_amax = columns;
    }
  }
  DeviceBuffer x;
  Made out, transposed;
  DeviceBuffer amax_1, columns, counters, non_finite, largest;
  Quantize args;
};

template <class Body>
void for_each_recipe(Body&& body) {
  for (Granularity granularity : kGranularities) {
    for (DType format : {DType::e4m3, DType::e5m2}) {
      for (bool power_of_two : {false, true}) {
        if (granularity == Granularity::block_1x32 && !power_of_two) continue;
        INFO(name_of(granularity) << " " << name_of(format) << " power of two " << power_of_two);
        body(ReferenceRecipe{format, granularity, power_of_two});
      }
    }
  }
}

}  // namespace

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
        const auto turned_want =
            reference_quantize(test::transposed(values, size.rows, size.cols), size.cols, size.rows, recipe);
        for (DType dtype : {DType::f32, DType::bf16}) {
          INFO(size.rows << " x " << size.cols << " " << name_of(dtype));

          Quantizing both(stream, values, size, recipe, dtype);
          quantize(stream, both.args);
          CHECK(is_exactly(want, both.out.codes(), both.out.inverses()));
          CHECK(is_exactly(turned_want, both.transposed.codes(), both.transposed.inverses()));
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

          Quantizing turned_only(stream, values, size, recipe, dtype);
          turned_only.args.out = {};
          turned_only.args.counters = {};
          turned_only.args.largest = {};
          quantize(stream, turned_only.args);
          CHECK(turned_only.counters.download_as<int64_t>()[0] == 0);
          CHECK(turned_only.largest.download_as<uint32_t>()[0] == 0);
          turned_only.args.counters = turned_only.counters;
          turned_only.args.largest = turned_only.largest;
          quantize(stream, turned_only.args);
          CHECK(turned_only.largest.download_as<uint32_t>()[0] == largest_bits(values));
          CHECK(turned_only.transposed.codes() == both.transposed.codes());
          CHECK(turned_only.transposed.inverses() == both.transposed.inverses());
          CHECK(turned_only.counters.download_as<int64_t>()[1] == turned_want.underflow);
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

TEST_CASE("quantize: an f32 weight and its bf16 copy give the same bytes") {
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
      DeviceBuffer turned(stream, DType::e4m3, {size.cols, size.rows});
      transpose_bytes(stream, q.out.bytes, turned);
      CHECK(turned.download_as<uint8_t>() == q.transposed.codes());
    }
  });
}

TEST_CASE("quantize: scales of 128x128 turn with the bytes, and their padding is zero") {
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
          turned(stream, DType::f32, shape(size.cols, size.rows));
      quantize(stream, {.x = x,
                        .granularity = Granularity::block_128x128,
                        .rounding = ScaleRounding::down_to_power_of_two,
                        .out = {bytes, scales},
                        .transposed = {turned_bytes, want}});
      transpose_block_scales(stream, scales, {size.rows, size.cols}, turned);
      CHECK(turned.floats() == want.floats());
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

TEST_CASE("dequantize gives code times inverse, for every code") {
  for_each_device([](Stream& stream) {
    for_each_recipe([&](ReferenceRecipe recipe) {
      const Size size{130, 300};
      const auto values = spread_values(size.rows * size.cols, 4);
      Quantizing q(stream, values, size, recipe, DType::bf16);
      quantize(stream, q.args);
      const auto table = finite_values(recipe.format);
      const auto codes = q.out.codes();
      const auto inverses = q.out.inverses();
      for (DType dtype : {DType::f32, DType::bf16}) {
        DeviceBuffer y(stream, dtype, {size.rows, size.cols});
        dequantize(stream, q.out.view(), recipe.granularity, y);
        const auto got = y.floats();
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const auto magnitude = static_cast<float>(table[codes[i] & 0x7f]);
          float want = (codes[i] & 0x80 ? -magnitude : magnitude) * inverses[i];
          if (dtype == DType::bf16) want = static_cast<float>(bf16(want));
          wrong += got[i] != want;
        }
        CHECK(wrong == 0);
      }
    });
    for (DType format : {DType::e4m3, DType::e5m2}) {
      std::vector<uint8_t> codes(256);
      for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
      DeviceBuffer bytes(stream, format, {1, 256}), one(stream, DType::f32, {1}, std::array{1.0f}),
          y(stream, DType::f32, {1, 256});
      bytes.upload_as<uint8_t>(codes);
      dequantize(stream, {bytes, one}, Granularity::tensor, y);
      const auto got = y.floats();
      for (size_t i = 0; i < 256; ++i) {
        const float want = decode(codes[i], format_of(format));
        CHECK((got[i] == want || (std::isnan(got[i]) && std::isnan(want))));
      }
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

TEST_CASE("amax is that of the bf16-rounded values, keeps a larger one and never loses a NaN") {
  for_each_device([](Stream& stream) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (Size size : kSizes) {
        auto values = normal_values(size.rows * size.cols, 1);
        std::vector<float> rounded;
        for (float x : values) rounded.push_back(static_cast<float>(bf16(x)));
        DeviceBuffer x(stream, dtype, {size.rows, size.cols}, values), got(stream, DType::u32, {1}),
            columns(stream, DType::u32, {size.cols});
        got.upload_as<uint32_t>(std::array{0u});
        columns.upload_as<uint32_t>(std::vector<uint32_t>(static_cast<size_t>(size.cols), 0u));
        fp8::amax(stream, x, got);
        column_amax(stream, x, columns);
        CHECK(got.download_as<uint32_t>()[0] == largest_bits(rounded));
        const auto by_column = columns.download_as<uint32_t>();
        for (int64_t c = 0; c < size.cols; ++c) {
          std::vector<float> column;
          for (int64_t r = 0; r < size.rows; ++r)
            column.push_back(rounded[static_cast<size_t>(r * size.cols + c)]);
          REQUIRE(by_column[static_cast<size_t>(c)] == largest_bits(column));
        }
        got.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(1e30f)});
        fp8::amax(stream, x, got);
        CHECK(got.download_as<uint32_t>()[0] == std::bit_cast<uint32_t>(1e30f));
        values.back() = std::numeric_limits<float>::quiet_NaN();
        x.upload(values);
        fp8::amax(stream, x, got);
        CHECK(got.download_as<uint32_t>()[0] > 0x7f800000u);
      }
    }
  });
}

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
  const Quantized out{shape_only(DType::e4m3, {64, 256}), shape_only(DType::f32, {1})};
  const double n = 64 * 256;
  fp8::amax(stream, x, amax_1);
  CHECK(recorder.bytes() == 2 * n);
  recorder.clear();
  quantize(stream, {.x = x, .amax = amax_1, .out = out});
  CHECK(recorder.bytes() == 3 * n + 4);
  recorder.clear();
  const Quantized rows{shape_only(DType::e4m3, {64, 256}), shape_only(DType::f32, {64})},
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
  transpose_bytes(stream, out.bytes, columns.bytes);
  CHECK(recorder.bytes() == 2 * n);
}

TEST_CASE("quantize refuses what does not fit, and says which") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {4, 8}), one = shape_only(DType::u32, {1});
  const Quantized out{shape_only(DType::e4m3, {4, 8}), shape_only(DType::f32, {1})};
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
  args = good, args.out.bytes = shape_only(DType::e4m3, {8, 4});
  refuses(args, "[quantize] out.bytes is e4m3 [8, 4], expected e4m3 [4, 8]");
  args = good, args.out.bytes = shape_only(DType::u8, {4, 8});
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
          "[quantize] granularity 1x32 stores scales as e8m0, which holds powers of two alone: set rounding");
  args = good, args.counters = shape_only(DType::i64, {2});
  refuses(args, "[quantize] counters is i64 [2], expected i64 [3]");
  args = good, args.non_finite = shape_only(DType::f32, {1});
  refuses(args, "[quantize] non_finite is f32 [1], expected u32 [1]");
  args = good, args.largest = shape_only(DType::u32, {2});
  refuses(args, "[quantize] largest is u32 [2], expected u32 [1]");
  CHECK_THROWS_WITH(fp8::amax(stream, x, x), "[amax] amax is bf16 [4, 8], expected u32 [1]");
  CHECK_THROWS_WITH(column_amax(stream, x, one), "[column_amax] amax is u32 [1], expected u32 [8]");
  CHECK_THROWS_WITH(dequantize(stream, out, Granularity::tensor, shape_only(DType::bf16, {8, 4})),
                    "[dequantize] x.bytes is e4m3 [4, 8], expected e4m3 [8, 4]");
  CHECK_THROWS_WITH(transpose_bytes(stream, x, x), "[transpose_bytes] from is bf16 [4, 8], expected bytes");
  CHECK_THROWS_WITH(transpose_bytes(stream, out.bytes, out.bytes),
                    "[transpose_bytes] to is e4m3 [4, 8], expected e4m3 [8, 4]");
  const Tensor tall = shape_only(DType::f32, {3, 4}), wide = shape_only(DType::f32, {1, 4});
  transpose_block_scales(stream, tall, {300, 100}, wide);
  CHECK_THROWS_WITH(transpose_block_scales(stream, wide, {300, 100}, wide),
                    "[transpose_block_scales] from is f32 [1, 4], expected f32 [3, 4]");
  CHECK_THROWS_WITH(transpose_block_scales(stream, tall, {300, 100}, tall),
                    "[transpose_block_scales] to is f32 [3, 4], expected f32 [1, 4]");
}
