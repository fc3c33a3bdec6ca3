#include "apps/report/float8_remarks.h"

#include <algorithm>
#include <utility>

#include "apps/config/resolved_float8.h"
#include "core/contains.h"
#include "core/gib.h"

namespace ottava {
namespace {

// "" where all codes are made of shards, or weights stay whole.
std::string weight_codes_text(const Experiment& e, const StepPlan& plan) {
  const FsdpOptions& fsdp = e.shape.parameters;
  std::vector<std::string> names = weights_gathered_as_values(e);
  for (std::string& name : names) name += '.';
  const bool has_choice =
      e.mesh.shards() > 1 && !names.empty() && fsdp.reshard != FsdpOptions::Reshard::never;
  if (!has_choice) {
    const bool is_asked_for = e.config.float8.keep_weight_codes != Float8Config::KeepCodes::automatic;
    return is_asked_for
               ? "keep_weight_codes changes nothing: no FP8 weight is gathered in the compute type and let "
                 "go within a step"
               : "";
  }
  const WeightQuantizing made = weight_quantizing(plan);
  if (!fsdp.keeps_float8_codes) {
    return fmt::format(
        "codes of {} gathered weights are made again after every gather: {} quantizations of {:.3f} GiB read "
        "and written per step",
        names.size(), made.calls, gib(made.bytes));
  }
  int64_t bytes = 0;
  for (const PlannedAllocation& a : plan.memory.persistent) {
    const bool is_kept =
        std::ranges::any_of(names, [&](const auto& name) { return a.name.starts_with(name); });
    if (is_kept && contains_text(a.name, ".fp8")) bytes += a.bytes;
  }
  return fmt::format(
      "codes of {} gathered weights are kept through the step, {:.3f} GiB: {} quantizations of {:.3f} GiB "
      "read and written per step",
      names.size(), gib(bytes), made.calls, gib(made.bytes));
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
  if (std::string codes = weight_codes_text(e, plan); !codes.empty()) lines.push_back(std::move(codes));
  return lines;
}

}  // namespace ottava
