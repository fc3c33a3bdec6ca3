#include "fp8/recipe.h"

#include <fmt/format.h>

#include <array>

namespace ottava::fp8 {
namespace {

constexpr std::array<std::string_view, 7> kNames = {
    "tensorwise", "tensorwise_with_gw_hp", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"};
constexpr ScaleRounding kPowerOfTwo = ScaleRounding::down_to_power_of_two;

Recipe from(RecipeName name, OperandRecipe x, OperandRecipe w, OperandRecipe dy) {
  x.role = Role::x, w.role = Role::w, dy.role = Role::dy;
  return {.name = name,
          .forward = {.a = x, .b = w},
          .input_gradient = {.a = dy, .b = w},
          .weight_gradient = {.a = dy, .b = x}};
}

}  // namespace

std::string_view name_of(RecipeName name) { return kNames[static_cast<size_t>(name)]; }

RecipeName parse_recipe(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<RecipeName>(i);
  }
  fail<ConfigError>("fp8", "recipe {} is unknown: expected one of {}", name, fmt::join(kNames, ", "));
}

std::vector<std::string_view> recipe_names() { return {kNames.begin(), kNames.end()}; }

Recipe make_recipe(RecipeName name, bool power_of_two_scales) {
  using enum RecipeName;
  const ScaleRounding rounding = power_of_two_scales ? kPowerOfTwo : ScaleRounding::none;
  switch (name) {
    case tensorwise:
    case tensorwise_with_gw_hp:
    case delayed: {
      const OperandRecipe e4m3{.format = DType::e4m3, .rounding = rounding};
      const OperandRecipe e5m2{.format = DType::e5m2, .rounding = rounding};
      Recipe recipe = from(name, e4m3, e4m3, e5m2);
      recipe.weight_gradient.is_fp8 = name != tensorwise_with_gw_hp;
      return recipe;
    }
    case rowwise:
    case rowwise_with_gw_hp: {
      const OperandRecipe row{.granularity = Granularity::row, .rounding = kPowerOfTwo};
      Recipe recipe = from(name, row, row, row);
      if (name == rowwise_with_gw_hp) {
        recipe.input_gradient.b.granularity = Granularity::tensor;
        recipe.weight_gradient.is_fp8 = false;
      }
      return recipe;
    }
    case blockwise: {
      const OperandRecipe line{.granularity = Granularity::block_1x128, .rounding = kPowerOfTwo};
      const OperandRecipe square{.granularity = Granularity::block_128x128, .rounding = kPowerOfTwo};
      return from(name, line, square, line);
    }
    case mxfp8: {
      const OperandRecipe block{.granularity = Granularity::block_1x32, .rounding = kPowerOfTwo};
      return from(name, block, block, block);
    }
  }
  fail("fp8", "recipe {} has no operands in make_recipe()", static_cast<int>(name));
}

RecipeName recipe_with(Granularity granularity) {
  auto has = [&](size_t i) {
    const ProductRecipe forward = make_recipe(static_cast<RecipeName>(i)).forward;
    return forward.a.granularity == granularity || forward.b.granularity == granularity;
  };
  size_t i = 0;
  while (!has(i)) ++i;  // every granularity is some recipe's
  return static_cast<RecipeName>(i);
}

std::vector<RecipeName> recipes_of_compute_capability(int capability) {
  using enum RecipeName;
  if (capability < 89) return {};
  std::vector<RecipeName> names{tensorwise, tensorwise_with_gw_hp, delayed};
  if (capability == 90) {
    names.insert(names.end(), {rowwise, rowwise_with_gw_hp, blockwise});
  }
  if (capability == 100 || capability == 103) names.push_back(mxfp8);
  return names;
}

}  // namespace ottava::fp8
