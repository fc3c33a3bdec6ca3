#include "fp8/quantize_operand.h"

#include <algorithm>
#include <string>

#include "core/cost.h"
#include "tests/fp8/quantizing.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

constexpr Size kSize{144, 304};

/// Everything that quantizing an operand writes.
struct Outcome {
  std::vector<uint8_t> rowwise, columnwise;
  std::vector<uint32_t> row_scales, column_scales;
  std::vector<int64_t> counters;
  uint32_t amax = 0, non_finite = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(Quantizing& q, const DeviceBuffer& amax) {
  return {q.out.codes(),
          q.transposed.codes(),
          q.out.raw_inverses(),
          q.transposed.raw_inverses(),
          q.counters.download_as<int64_t>(),
          amax.download_as<uint32_t>()[0],
          q.non_finite.download_as<uint32_t>()[0]};
}

}  // namespace

TEST_CASE("quantize_operand makes what quantize makes of the amaxes that were measured before") {
  for_each_device([](Stream& stream) {
    const auto values = spread_values(kSize.rows * kSize.cols, 8);
    for_each_recipe([&](ReferenceRecipe recipe) {
      Quantizing by_hand(stream, values, kSize, recipe, DType::bf16);
      quantize(stream, by_hand.args);
      const bool is_given = traits(recipe.granularity).amax == AmaxSource::given;
      const Outcome want = outcome_of(by_hand, is_given ? by_hand.amax_1 : by_hand.largest);
      CHECK(want.amax == largest_bits(by_hand.x.floats()));
      for (Measured measured : {Measured::nothing, Measured::amax, Measured::all}) {
        INFO("measured " << static_cast<int>(measured));
        Quantizing q(stream, values, kSize, recipe, DType::bf16);
        if (measured == Measured::nothing) q.amax_1.upload_as<uint32_t>(std::array{0u});
        // What is measured is not what was there before.
        if (measured != Measured::all)
          q.columns.upload_as<uint32_t>(std::vector<uint32_t>(static_cast<size_t>(kSize.cols), 0x7f000000u));
        const Tensor& amax = is_given ? q.amax_1 : q.largest;
        const Float8Tensor out{q.out.view(), q.transposed.view(), recipe.granularity};
        CHECK(takes_column_amax(out) == (recipe.granularity == Granularity::row));
        quantize_operand(
            stream,
            {.x = q.x,
             .out = out,
             .rounding = rounding_of(recipe),
             .slots = {.amax = amax, .scale_amax = amax, .counters = q.counters, .non_finite = q.non_finite},
             .column_amax = q.columns,
             .measured = measured});
        CHECK((outcome_of(q, is_given ? q.amax_1 : q.largest) == want));
      }
    });
  });
}

TEST_CASE("quantize_operand takes a given amax's scale from its own slot, and measures only what is read") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Tensor x = shape_only(DType::bf16, {64, 256}), one = shape_only(DType::u32, {1}),
               columns = shape_only(DType::u32, {256});
  const auto codes = [](Granularity g, int64_t rows, int64_t cols) {
    return Float8Codes{shape_only(DType::e4m3, {rows, cols}),
                       shape_only(scale_dtype(g), scale_shape(g, rows, cols))};
  };
  const auto operations = [&](Float8Tensor out, Measured measured) {
    recorder.clear();
    quantize_operand(stream, {.x = x,
                              .out = out,
                              .rounding = ScaleRounding::down_to_power_of_two,
                              .slots = {.amax = one, .scale_amax = one},
                              .column_amax = columns,
                              .measured = measured});
    std::vector<std::string> names;
    for (const auto& total : recorder.totals()) names.emplace_back(total.op);
    std::sort(names.begin(), names.end());
    return names;
  };
  using Names = std::vector<std::string>;
  const Granularity tensor = Granularity::tensor, row = Granularity::row;
  CHECK(operations({codes(tensor, 64, 256), {}, tensor}, Measured::nothing) == Names{"amax", "quantize"});
  CHECK(operations({codes(tensor, 64, 256), {}, tensor}, Measured::amax) == Names{"quantize"});
  CHECK(operations({codes(row, 64, 256), {}, row}, Measured::nothing) == Names{"quantize"});
  const Names with_columns = operations({{}, codes(row, 256, 64), row}, Measured::amax);
  CHECK(std::count(with_columns.begin(), with_columns.end(), "column_amax") == 1);
  CHECK(operations({{}, codes(row, 256, 64), row}, Measured::all) == Names{"quantize"});

  Stream cpu = Stream::cpu();
  const std::vector<float> values(64 * 256, 3.0f);
  Quantizing q(cpu, values, {64, 256}, {DType::e4m3, tensor}, DType::bf16);
  DeviceBuffer earlier(cpu, DType::u32, {1});
  earlier.upload_as<uint32_t>(std::array{std::bit_cast<uint32_t>(7.0f)});
  quantize_operand(cpu, {.x = q.x,
                         .out = {q.out.view(), {}, tensor},
                         .slots = {.amax = q.amax_1, .scale_amax = earlier},
                         .measured = Measured::amax});
  CHECK(q.out.inverses()[0] == scale_from_amax(std::bit_cast<uint32_t>(7.0f), kE4M3).inverse);
}
