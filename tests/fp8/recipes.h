#pragma once

#include <string_view>
#include <vector>

#include "fp8/recipe.h"

namespace ottava::test {

/// Every recipe there is.
inline std::vector<fp8::RecipeName> recipes() {
  std::vector<fp8::RecipeName> out;
  for (std::string_view name : fp8::recipe_names()) out.push_back(fp8::parse_recipe(name));
  return out;
}

}  // namespace ottava::test
