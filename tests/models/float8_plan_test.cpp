#include "models/float8_plan.h"

#include "tests/fp8/recipes.h"
#include "tests/support/catch.h"

using namespace ottava;
using fp8::RecipeName;

namespace {

Float8Plan plan(RecipeName recipe, LinearStyle style, int tp, bool travels_in_codes, bool is_part = false) {
  return float8_plan(
      fp8::make_recipe(recipe),
      {.style = style, .tensor_parallel = tp, .is_part = is_part, .travels_in_codes = travels_in_codes});
}

}  // namespace

TEST_CASE("float8_plan: nothing travels on one rank, and in the compute type unless codes are asked for") {
  for (RecipeName recipe : test::recipes()) {
    for (LinearStyle style : {LinearStyle::column, LinearStyle::row}) {
      INFO(fp8::name_of(recipe));
      for (bool asked : {false, true}) {
        const Float8Plan one = plan(recipe, style, 1, asked);
        CHECK(one.x.travel == Travel::stays);
        CHECK(one.dy.travel == Travel::stays);
        CHECK(one.keeps_codes == fp8::make_recipe(recipe).weight_gradient.is_fp8);
      }
      const Float8Plan four = plan(recipe, style, 4, false);
      CHECK(four.x.travel == (style == LinearStyle::column ? Travel::values : Travel::stays));
      CHECK(four.dy.travel == (style == LinearStyle::row ? Travel::values : Travel::stays));
    }
  }
}

TEST_CASE("float8_plan: what travels as codes, by recipe") {
  struct Row {
    RecipeName recipe;
    Travel x, dy;
    bool keeps_codes;  ///< of a gathered x
  };
  for (const Row& r : {Row{RecipeName::tensorwise, Travel::codes, Travel::codes, true},
                       Row{RecipeName::tensorwise_with_gw_hp, Travel::codes, Travel::values, false},
                       Row{RecipeName::delayed, Travel::codes, Travel::codes, true},
                       Row{RecipeName::rowwise, Travel::codes, Travel::values, false},
                       Row{RecipeName::rowwise_with_gw_hp, Travel::codes, Travel::values, false},
                       Row{RecipeName::blockwise, Travel::codes, Travel::values, false},
                       Row{RecipeName::mxfp8, Travel::values, Travel::values, false}}) {
    INFO(fp8::name_of(r.recipe));
    const Float8Plan column = plan(r.recipe, LinearStyle::column, 2, true),
                     row = plan(r.recipe, LinearStyle::row, 2, true);
    CHECK(column.x.travel == r.x);
    CHECK(column.keeps_codes == r.keeps_codes);
    CHECK(column.dy.travel == Travel::stays);
    CHECK(row.dy.travel == r.dy);
    CHECK(row.x.travel == Travel::stays);
    CHECK(row.keeps_codes == fp8::make_recipe(r.recipe).weight_gradient.is_fp8);
    const Float8Plan part = plan(r.recipe, LinearStyle::column, 2, true, true);
    CHECK(part.x.travel == Travel::values);
  }
}

TEST_CASE(
    "float8_plan: producers measure one scale of what they write, or write codes that a row can scale") {
  for (RecipeName recipe : test::recipes()) {
    INFO(fp8::name_of(recipe));
    const bool is_tensor = recipe == RecipeName::tensorwise || recipe == RecipeName::tensorwise_with_gw_hp ||
                           recipe == RecipeName::delayed;
    const bool is_row_local = !is_tensor && recipe != RecipeName::mxfp8;
    const Float8Plan one = plan(recipe, LinearStyle::row, 1, false);
    for (const Float8Plan::Operand& operand : {one.x, one.dy}) {
      CHECK(operand.takes_amax == is_tensor);
      CHECK(operand.has_history == (recipe == RecipeName::delayed));
      CHECK(operand.takes_codes == (is_row_local || operand.has_history));
    }
    // Codes of the producer cannot be taken for what is gathered in the compute type, nor for the parts of a
    // fusion.
    const Float8Plan gathered = plan(recipe, LinearStyle::row, 2, false),
                     part = plan(recipe, LinearStyle::row, 1, false, true);
    CHECK_FALSE((gathered.dy.takes_amax || gathered.dy.takes_codes));
    CHECK(gathered.x.takes_amax == is_tensor);
    CHECK_FALSE((part.x.takes_amax || part.x.takes_codes || part.dy.takes_amax || part.dy.takes_codes));
  }
}
