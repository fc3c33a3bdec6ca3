#include "apps/report/float8_remarks.h"

#include <algorithm>
#include <utility>

#include "apps/config/resolved_float8.h"
#include "core/contains.h"
#include "core/text/counted.h"
#include "core/text/gib.h"

namespace ottava {
namespace {

// Empty if all codes are made from shards, or weights stay whole.
std::string weight_codes_text(const Experiment& e, const StepPlan& plan) {
  const FsdpOptions& fsdp = e.shape.parameters;
  std::vector<std::string> names = weights_gathered_as_values(e);
  for (std::string& name : names) name += '.';
  const bool has_choice =
      e.mesh.shards() > 1 && !names.empty() && fsdp.reshard != FsdpOptions::Reshard::never;
  if (!has_choice) {
    const bool is_asked_for = e.config.float8.keep_weight_codes != Float8Config::KeepCodes::automatic;
    return is_asked_for ? "keep_weight_codes has no effect: no FP8 weight is gathered in the compute dtype "
                          "and freed within a step"
                        : "";
  }
  const WeightQuantizing made = weight_quantizing(plan);
  if (!fsdp.keeps_float8_codes) {
    return fmt::format(
        "codes of {} are made again after every gather: {} of {:.3f} GiB read and written per step",
        counted(names.size(), "gathered weight"), counted(made.calls, "quantization"), gib(made.bytes));
  }
  int64_t bytes = 0;
  for (const PlannedAllocation& a : plan.memory.persistent) {
    const bool is_kept =
        std::ranges::any_of(names, [&](const auto& name) { return a.name.starts_with(name); });
    if (is_kept && contains_text(a.name, ".fp8")) bytes += a.bytes;
  }
  return fmt::format(
      "codes of {} are kept through the step, {:.3f} GiB: {} of {:.3f} GiB read and written per step",
      counted(names.size(), "gathered weight"), gib(bytes), counted(made.calls, "quantization"),
      gib(made.bytes));
}

// "" where tensor cores that sum fast or not run products.
std::string fast_accumulation_text(const Experiment& e) {
  if (e.config.float8.fast_accumulation == fp8::FastAccumulation::forward) return "";
  constexpr std::string_view kIdle = "fast_accumulation has no effect: ";
  if (!e.compute_capability) return fmt::format("{}a CPU sums in FP32", kIdle);
  if (*e.compute_capability >= 100) return fmt::format("{}this GPU's tensor cores sum in FP32", kIdle);
  const auto sums = [](const fp8::GemmDecision& d) { return d.recipe && !d.is_emulated; };
  return std::ranges::none_of(e.shape.float8_policy.decisions, sums)
             ? fmt::format("{}emulated products sum in FP32", kIdle)
             : "";
}

// Empty if scales of recipe `delayed` come from the history before the run ends.
std::string history_text(const Experiment& e) {
  const Float8Config& c = e.config.float8;
  const auto is_delayed = [](const fp8::GemmDecision& d) { return d.recipe && d.recipe->has_history(); };
  if (std::ranges::none_of(e.shape.float8_policy.decisions, is_delayed)) return "";
  if (e.config.training.steps > c.amax_history_length) return "";
  return fmt::format(
      "the amax history of recipe delayed, of {}, does not fill in {}: scales are each tensor's own "
      "throughout, as in tensorwise{}",
      counted(c.amax_history_length, "step"), counted(e.config.training.steps, "step"),
      c.margin > 0 ? ", and margin has no effect" : "");
}

}  // namespace

WeightQuantizing weight_quantizing(const StepPlan& plan) {
  WeightQuantizing out;
  for (const CostRecorder::Total& t : plan.costs) {
    if (t.op != "quantize" || !t.label.ends_with(kGatheredWeights)) continue;
    out.calls += t.calls;
    out.bytes += t.bytes;
  }
  return out;
}

std::vector<std::string> float8_remarks(const Experiment& e, const StepPlan& plan) {
  if (!e.shape.float8.is_on()) return {};
  std::vector<std::string> lines = float8_remarks(
      e.shape.float8_policy, e.config.float8,
      {.shards = e.mesh.shards(), .tensor_parallel = e.mesh.size(MeshAxis::tp), .traffic = plan.traffic});
  for (std::string text : {weight_codes_text(e, plan), fast_accumulation_text(e), history_text(e)})
    if (!text.empty()) lines.push_back(std::move(text));
  return lines;
}

}  // namespace ottava
