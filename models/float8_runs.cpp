#include "models/float8_runs.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

constexpr size_t kNamed = 4;

std::string recipe_of(const std::optional<fp8::RecipeName>& recipe) {
  return recipe ? std::string(fp8::name_of(*recipe)) : "high precision";
}

/// "layers.1.feed_forward.w2 ran tensorwise 1 forward, 1 input gradient, 0 weight gradient instead of
/// tensorwise"; empty if it ran as decided.
std::string difference(const std::string& name, const Float8Runs& ran,
                       const std::optional<fp8::Recipe>& recipe) {
  std::optional<fp8::RecipeName> decided;
  std::array<bool, 3> wanted{};  // which of the products are FP8
  if (recipe) {
    decided = recipe->name;
    wanted = {recipe->forward.is_fp8, recipe->input_gradient.is_fp8, recipe->weight_gradient.is_fp8};
  }
  bool is_same = ran.recipe == decided;
  for (size_t kind = 0; kind < wanted.size(); ++kind) is_same &= (ran.products[kind] > 0) == wanted[kind];
  if (is_same) return {};
  std::vector<std::string> counts;
  for (size_t kind = 0; kind < wanted.size(); ++kind)
    counts.push_back(fmt::format("{} {}", ran.products[kind], name_of(static_cast<MatmulKind>(kind))));
  return fmt::format("{} ran {} {} instead of {}", name, recipe_of(ran.recipe), fmt::join(counts, ", "),
                     recipe_of(decided));
}

}  // namespace

void check_float8_runs(const fp8::Policy& policy, const Float8State& state,
                       const std::function<bool(std::string_view)>& holds) {
  const std::vector<std::string>& products = state.options().products;
  std::vector<std::string> wrong;
  auto compare = [&](const std::string& name, const Float8Runs& ran,
                     const std::optional<fp8::Recipe>& recipe) {
    if (std::string text = difference(name, ran, recipe); !text.empty()) wrong.push_back(std::move(text));
  };
  for (const fp8::GemmDecision& d : policy.decisions) {
    if (!holds(d.gemm.name)) continue;
    const auto at = std::ranges::find(products, d.gemm.name);
    compare(d.gemm.name, at == products.end() ? Float8Runs{} : state.runs(at - products.begin()), d.recipe);
  }
  for (size_t i = 0; i < products.size(); ++i) {
    if (!policy.find(products[i])) compare(products[i], state.runs(i), {});
  }
  if (wrong.empty()) return;
  const size_t more = wrong.size() - std::min(wrong.size(), kNamed);
  wrong.resize(wrong.size() - more);
  if (more > 0) wrong.push_back("and " + counted(more, "more layer"));
  fail<NumericsError>("fp8",
                      "the step's {} FP8 products are not those of the policy: {}: this is a defect, please "
                      "report it with the configuration",
                      state.products_run(), fmt::join(wrong, "; "));
}

}  // namespace ottava
