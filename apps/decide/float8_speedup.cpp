#include "apps/decide/float8_speedup.h"

#include <algorithm>
#include <cmath>

#include "apps/config/resolved_float8.h"
#include "apps/decide/step_times.h"
#include "core/error.h"
#include "core/number.h"
#include "parallel/ranks/agree.h"

namespace ottava {
std::string decision_name(const ProductShape& s) {
  return fmt::format("quantize.linear.float8.auto {} x {} x {} {}", s.tokens, s.rows, s.columns,
                     fp8::name_of(s.recipe));
}

std::vector<Decisions::Entry> measure_float8(const Experiment& e, RankGroups& ranks, Device device) {
  Stream stream = stream_like_steps(e, device);
  const std::vector<ProductShape> shapes =
      float8_candidates(e.shape.float8_policy, e.tokens_per_micro_batch());
  const auto step_with = [&](const std::function<bool(size_t)>& is_float8) {
    Decisions chosen;
    for (size_t i = 0; i < shapes.size(); ++i)
      chosen.entries.push_back({decision_name(shapes[i]), is_float8(i) ? "2" : "0.5", ""});
    Experiment variant = e;
    apply_measured_float8(variant, chosen);
    return record_first_rank(variant.shape, device, e.mesh);
  };
  OperationTimes times(stream, e.shape.model.vocab_size / e.mesh.size(MeshAxis::tp));
  const StepPlan plain = step_with([](size_t) { return false; });
  std::vector<StepPlan> steps;
  std::vector<double> with, without;
  fail_together(*ranks.control, "decisions", [&] {
    for (size_t i = 0; i < shapes.size(); ++i) {
      steps.push_back(step_with([&](size_t shape) { return shape == i; }));
      with.push_back(times.beyond(steps[i], plain));
      without.push_back(times.beyond(plain, steps[i]));
    }
  });
  const double waited = waited_milliseconds(stream, ranks, plain.order);
  std::vector<Decisions::Entry> out;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const double more = waited_milliseconds(stream, ranks, steps[i].order) - waited;
    (more > 0 ? with : without)[i] += std::abs(more);
    out.push_back({decision_name(shapes[i]), fmt::format("{:.3f}", std::max(without[i] / with[i], 0.001)),
                   fmt::format("a step's operations: {:.3f} ms in bf16, {:.3f} ms in FP8 with its casts",
                               without[i], with[i])});
  }
  out = of_first_rank({.entries = std::move(out)}, *ranks.control).entries;
  const StepPlan chosen = step_with([&](size_t i) { return std::stod(out[i].value) >= 1; });
  double predicted = 0, in_bf16 = 0;
  fail_together(*ranks.control, "decisions",
                [&] { predicted = times.of(chosen), in_bf16 = times.of(plain); });
  predicted += waited_milliseconds(stream, ranks, chosen.order);
  out.push_back({std::string(kFloat8StepDecision), fmt::format("{:.3f}", predicted),
                 fmt::format("operations and what is waited for; {:.3f} with bf16 in all of these layers",
                             in_bf16 + waited)});
  return of_first_rank({.entries = std::move(out)}, *ranks.control).entries;
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
