#include "apps/decide/float8_speedup.h"

#include <algorithm>
#include <cmath>

#include "apps/config/float8_ratios.h"
#include "apps/config/resolved_float8.h"
#include "apps/decide/operation_times.h"
#include "parallel/comm/agree.h"

namespace ottava {

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

std::vector<Decisions::Entry> measure_as_decided(
    const Experiment& e, const std::function<Experiment(const Experiment&)>& decide,
    const std::function<std::vector<Decisions::Entry>(const Experiment&)>& measure) {
  Experiment timed = decide(e);
  std::vector<Decisions::Entry> measured = measure(timed);
  Experiment chosen = e;
  apply_measured_float8(chosen, {.entries = measured});
  const bool has_codes = leaves_weight_codes_open(chosen);
  chosen = decide(chosen);
  const FsdpOptions& real = chosen.shape.parameters;
  FsdpOptions& then = timed.shape.parameters;
  std::vector<Recompute>& recompute = timed.shape.model_options.recompute;
  if (real.reduce_every_micro_batch == then.reduce_every_micro_batch &&
      (real.keeps_float8_codes == then.keeps_float8_codes || !has_codes) &&
      chosen.shape.model_options.recompute == recompute)
    return measured;
  then.reduce_every_micro_batch = real.reduce_every_micro_batch;
  if (has_codes) then.keeps_float8_codes = real.keeps_float8_codes;
  recompute = chosen.shape.model_options.recompute;
  return measure(timed);
}

}  // namespace ottava
