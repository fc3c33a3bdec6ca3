#include "fp8/recipe.h"

#include <array>
#include <limits>

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "fp8/amax_history.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;

namespace {

std::string text(const OperandRecipe& o) {
  const char* role = o.role == Role::x ? "x" : o.role == Role::w ? "w" : "dy";
  return fmt::format("{} {} {}{}", role, ottava::name_of(o.format), name_of(o.granularity),
                     o.rounding == ScaleRounding::down_to_power_of_two ? " 2^n" : "");
}
std::string text(const ProductRecipe& p) {
  return p.is_fp8 ? fmt::format("{}, {}", text(p.a), text(p.b)) : "high precision";
}

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

}  // namespace

TEST_CASE("recipes: what each of the three products multiplies") {
  struct Row {
    const char *name, *forward, *input_gradient, *weight_gradient;
  };
  for (Row row : std::initializer_list<Row>{
           {"tensorwise", "x e4m3 tensor, w e4m3 tensor", "dy e5m2 tensor, w e4m3 tensor",
            "dy e5m2 tensor, x e4m3 tensor"},
           {"tensorwise_with_gw_hp", "x e4m3 tensor, w e4m3 tensor", "dy e5m2 tensor, w e4m3 tensor",
            "high precision"},
           {"delayed", "x e4m3 tensor, w e4m3 tensor", "dy e5m2 tensor, w e4m3 tensor",
            "dy e5m2 tensor, x e4m3 tensor"},
           {"rowwise", "x e4m3 row 2^n, w e4m3 row 2^n", "dy e4m3 row 2^n, w e4m3 row 2^n",
            "dy e4m3 row 2^n, x e4m3 row 2^n"},
           {"rowwise_with_gw_hp", "x e4m3 row 2^n, w e4m3 row 2^n", "dy e4m3 row 2^n, w e4m3 tensor 2^n",
            "high precision"},
           {"blockwise", "x e4m3 1x128 2^n, w e4m3 128x128 2^n", "dy e4m3 1x128 2^n, w e4m3 128x128 2^n",
            "dy e4m3 1x128 2^n, x e4m3 1x128 2^n"},
           {"mxfp8", "x e4m3 1x32 2^n, w e4m3 1x32 2^n", "dy e4m3 1x32 2^n, w e4m3 1x32 2^n",
            "dy e4m3 1x32 2^n, x e4m3 1x32 2^n"}}) {
    INFO(row.name);
    const Recipe recipe = make_recipe(parse_recipe(row.name));
    CHECK(name_of(recipe.name) == row.name);
    CHECK(text(recipe.of(MatmulKind::forward)) == row.forward);
    CHECK(text(recipe.of(MatmulKind::input_gradient)) == row.input_gradient);
    CHECK(text(recipe.of(MatmulKind::weight_gradient)) == row.weight_gradient);
    CHECK(recipe.fp8_products() == (std::string_view(row.weight_gradient) == "high precision" ? 2 : 3));
    CHECK(recipe.has_history() == (std::string_view(row.name) == "delayed"));
    CHECK(recipe.alignment() == (std::string_view(row.name) == "mxfp8" ? 32 : 16));
  }
  CHECK(text(make_recipe(RecipeName::tensorwise, true).forward) == "x e4m3 tensor 2^n, w e4m3 tensor 2^n");
  CHECK(recipe_names().size() == 7);
  CHECK_THROWS_WITH(make_recipe(static_cast<RecipeName>(99)),
                    "[fp8] recipe 99 has no operands in make_recipe()");
  CHECK_THROWS_WITH(
      parse_recipe("rowise"),
      "[fp8] recipe rowise is unknown: expected one of tensorwise, tensorwise_with_gw_hp, delayed, rowwise, "
      "rowwise_with_gw_hp, blockwise, mxfp8");
}

TEST_CASE("recipes: what a GPU multiplies") {
  using R = RecipeName;
  CHECK(recipes_of_compute_capability(80).empty());
  CHECK(recipes_of_compute_capability(89) ==
        std::vector<R>{R::tensorwise, R::tensorwise_with_gw_hp, R::delayed});
  CHECK(recipes_of_compute_capability(90) == std::vector<R>{R::tensorwise, R::tensorwise_with_gw_hp,
                                                            R::delayed, R::rowwise, R::rowwise_with_gw_hp,
                                                            R::blockwise});
  CHECK(recipes_of_compute_capability(100) ==
        std::vector<R>{R::tensorwise, R::tensorwise_with_gw_hp, R::delayed, R::mxfp8});
  CHECK(recipes_of_compute_capability(120) ==
        std::vector<R>{R::tensorwise, R::tensorwise_with_gw_hp, R::delayed});
}

TEST_CASE("delayed scaling: current amaxes while the history fills, then its maximum with the margin") {
  for_each_device([](Stream& stream) {
    DeviceBuffer rows(stream, DType::u32, {3, 2}), current(stream, DType::u32, {2}),
        amax(stream, DType::u32, {2});
    AmaxHistory history{.rows = rows, .margin = 1};
    auto step = [&](float a, float b) {
      current.upload_as<uint32_t>(std::array{bits(a), bits(b)});
      delayed_amax(stream, history, {.current = current, .amax = amax});
      const auto used = amax.download_as<uint32_t>();
      advance(stream, history, current);
      return std::array{std::bit_cast<float>(used[0]), std::bit_cast<float>(used[1])};
    };
    using Pair = std::array<float, 2>;
    CHECK(step(1, 10) == Pair{1, 10});
    CHECK(step(5, 20) == Pair{5, 20});
    CHECK_FALSE(history.is_full());
    CHECK(step(2, 30) == Pair{2, 30});
    CHECK(history.is_full());
    CHECK(step(100, 1) == Pair{10, 60});  // max(1, 5, 2) and max(10, 20, 30), twice
    CHECK(step(3, 1) == Pair{200, 60});   // 1 and 10 have left
    CHECK(step(3, 1) == Pair{200, 60});
    CHECK(step(3, 1) == Pair{200, 2});
    CHECK(step(3, 1) == Pair{6, 2});

    // What is not finite never enters, and a margin does not overflow.
    CHECK(step(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()) ==
          Pair{6, 2});
    CHECK(step(3, 1) == Pair{6, 2});
    step(3e38f, 1);
    CHECK(step(1, 1)[0] == std::numeric_limits<float>::max());

    // A zero says nothing; a history of nothing else is as if 1 had been seen, times the margin.
    for (int i = 0; i < 4; ++i) step(5, 6);
    for (int i = 0; i < 4; ++i) CHECK(step(0, 6) == Pair{10, 12});
    fill_zero(stream, rows);
    CHECK(step(7, 6) == Pair{2, 2});

    // State saved and put back continues alike.
    DeviceBuffer copy(stream, DType::u32, {3, 2});
    copy.upload_as<uint32_t>(rows.download_as<uint32_t>());
    AmaxHistory again{.rows = copy, .steps = history.steps, .margin = 1};
    for (int i = 0; i < 4; ++i) {
      step(static_cast<float>(i + 1), 7);
      advance(stream, again, current);
      CHECK(copy.download_as<uint32_t>() == rows.download_as<uint32_t>());
    }
  });
}

TEST_CASE("delayed scaling: the first step's NaN leaves zero, refusals, costs") {
  for_each_device([](Stream& stream) {
    DeviceBuffer rows(stream, DType::u32, {2, 1}), current(stream, DType::u32, {1});
    AmaxHistory history{.rows = rows};
    current.upload_as<uint32_t>(std::array{0x7fc00000u});
    advance(stream, history, current);
    CHECK(rows.download_as<uint32_t>()[0] == 0);
  });

  CostRecorder recorder;
  Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0});
  AmaxHistory plan{.rows = shape_only(DType::u32, {4, 8})};
  const Tensor slots = shape_only(DType::u32, {8});
  delayed_amax(meta, plan, {.current = slots, .amax = slots});
  CHECK(recorder.bytes() == 5 * 8 * 4);
  advance(meta, plan, slots);
  CHECK(plan.steps == 1);
  CHECK(recorder.bytes() == 7 * 8 * 4);
  CHECK_THROWS_WITH(delayed_amax(meta, plan, {.amax = slots}),
                    "[delayed_amax] current is f32 [], expected u32 [8]");
  CHECK_THROWS_WITH(delayed_amax(meta, plan, {.current = slots, .amax = shape_only(DType::u32, {7})}),
                    "[delayed_amax] amax is u32 [7], expected u32 [8]");
  CHECK_THROWS_WITH(advance(meta, plan, shape_only(DType::f32, {8})),
                    "[advance_amax_history] step_amax is f32 [8], expected u32 [8]");
  plan.rows = shape_only(DType::f32, {4, 8});
  CHECK_THROWS_WITH(advance(meta, plan, slots),
                    "[advance_amax_history] history is f32 [4, 8], expected u32 [length, slots]");
}

TEST_CASE("recipes: the first that has scales of a granularity") {
  CHECK(recipe_with(Granularity::tensor) == RecipeName::tensorwise);
  CHECK(recipe_with(Granularity::row) == RecipeName::rowwise);
  CHECK(recipe_with(Granularity::block_1x128) == RecipeName::blockwise);
  CHECK(recipe_with(Granularity::block_128x128) == RecipeName::blockwise);
  CHECK(recipe_with(Granularity::block_1x32) == RecipeName::mxfp8);
}
