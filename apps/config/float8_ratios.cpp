#include "apps/config/float8_ratios.h"

#include <algorithm>

#include "core/error.h"
#include "core/text/number.h"

namespace ottava {

std::string decision_name(const ProductShape& s) {
  return fmt::format("quantize.linear.float8.auto {} x {} x {} {}", s.tokens, s.rows, s.columns,
                     fp8::name_of(s.recipe));
}

std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups_of(
    const Decisions& decisions, int64_t tokens, const std::string& file) {
  return [decisions, tokens, file](const fp8::PolicyGemm& gemm,
                                   const fp8::Recipe& recipe) -> std::optional<double> {
    const std::string name = decision_name({tokens, gemm.local_rows(), gemm.local_columns, recipe.name});
    const Decisions::Entry* entry = decisions.find(name);
    if (!entry) {
      fail<ConfigError>(
          "decisions", "there is no measurement '{}' for {}{}", name, gemm.name,
          file.empty() ? ": measure again with --redecide"
                       : fmt::format(" in {}: set quantize.linear.float8.auto_decisions to the "
                                     "decisions.json of a run of this model, batch and layout on the GPU",
                                     file));
    }
    const double ratio = parse_number<double>(entry->value).value_or(0);
    if (!(ratio > 0)) {
      fail<ConfigError>("decisions", "'{}' is '{}', expected how many times faster FP8 is", name,
                        entry->value);
    }
    return ratio;
  };
}

std::vector<ProductShape> float8_candidates(const fp8::Policy& policy, int64_t tokens) {
  std::vector<ProductShape> shapes;
  for (const fp8::GemmDecision& d : policy.decisions) {
    if (!d.is_measured) continue;
    const ProductShape shape{tokens, d.gemm.local_rows(), d.gemm.local_columns, d.recipe->name};
    const std::string name = decision_name(shape);
    if (std::ranges::none_of(shapes, [&](const ProductShape& s) { return decision_name(s) == name; }))
      shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace ottava
