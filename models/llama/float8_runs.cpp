#include "models/llama/float8_runs.h"

#include <algorithm>
#include <string_view>

#include "core/counted.h"
#include "core/error.h"

namespace ottava {
namespace {

constexpr size_t kNamed = 4;

std::string recipe_of(const Float8Runs& runs) {
  return runs.recipe ? std::string(fp8::name_of(*runs.recipe)) : "high precision";
}

/// "layers.1.feed_forward.w2: tensorwise 1 forward, 1 input gradient, 0 weight gradient instead of ...".
std::string difference(std::string_view name, const Float8Runs& ran, const Float8Runs& wanted) {
  auto list = [](const Float8Runs& runs) {
    return fmt::format("{} {} forward, {} input gradient, {} weight gradient", recipe_of(runs),
                       runs.of(MatmulKind::forward), runs.of(MatmulKind::input_gradient),
                       runs.of(MatmulKind::weight_gradient));
  };
  return fmt::format("{} ran {} instead of {}", name, list(ran), list(wanted));
}

}  // namespace

Float8Runs float8_runs(const fp8::GemmDecision& d, const LlamaModelOptions& options,
                       const Float8StepCounts& step) {
  if (!d.recipe) return {};
  int64_t passes = step.micro_batches, forward = passes;
  if (d.gemm.role == fp8::GemmRole::output) {
    const int64_t chunk = std::min(step.tokens, options.loss_chunk_rows);
    forward = passes = passes * ((step.tokens + chunk - 1) / chunk);
  } else if (!options.recompute.empty() &&
             options.recompute[static_cast<size_t>(d.gemm.layer)] == Recompute::block &&
             !d.gemm.name.ends_with(".w2")) {
    forward *= 2;
  }
  const fp8::Recipe& recipe = *d.recipe;
  return {.recipe = recipe.name,
          .products = {recipe.forward.is_fp8 ? forward : 0, recipe.input_gradient.is_fp8 ? passes : 0,
                       recipe.weight_gradient.is_fp8 ? passes : 0}};
}

void check_float8_runs(const fp8::Policy& policy, const LlamaModelOptions& options,
                       const Float8StepCounts& step, const Float8State& state) {
  const std::vector<std::string>& products = state.options().products;
  std::vector<std::string> wrong;
  int64_t wanted_sum = 0;
  for (const fp8::GemmDecision& d : policy.decisions) {
    const auto at = std::find(products.begin(), products.end(), d.gemm.name);
    const Float8Runs ran = at == products.end() ? Float8Runs{} : state.runs(at - products.begin());
    const Float8Runs wanted = float8_runs(d, options, step);
    wanted_sum += wanted.sum();
    if (ran != wanted) wrong.push_back(difference(d.gemm.name, ran, wanted));
  }
  for (size_t i = 0; i < products.size(); ++i) {
    const Float8Runs ran = state.runs(static_cast<int64_t>(i));
    if (!policy.find(products[i]) && ran.sum() > 0) wrong.push_back(difference(products[i], ran, {}));
  }
  if (wrong.empty()) return;
  std::string list;
  for (size_t i = 0; i < std::min(wrong.size(), kNamed); ++i) list += (i > 0 ? "; " : "") + wrong[i];
  if (wrong.size() > kNamed) list += fmt::format("; and {}", counted(wrong.size() - kNamed, "more layer"));
  fail<NumericsError>(
      "fp8",
      "the step ran {} FP8 products, the policy has {}: {}: this is a defect, please report it "
      "with the configuration",
      state.products_run(), wanted_sum, list);
}

}  // namespace ottava
