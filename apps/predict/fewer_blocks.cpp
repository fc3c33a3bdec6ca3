#include "apps/predict/fewer_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "apps/predict/nccl_memory.h"
#include "apps/predict/sample_step.h"

namespace ottava {
namespace {

constexpr int64_t kFew = 3;  // motifs from which on all that is added is another one

// A number for each block, the same for those that are alike.
std::vector<size_t> block_kinds(const TrainingShape& shape) {
  std::vector<std::string> kinds(shape.model.layers);
  const std::vector<Recompute>& recompute = shape.model_options.recompute;
  for (size_t i = 0; i < recompute.size() && i < kinds.size(); ++i)
    kinds[i] = std::to_string(static_cast<int>(recompute[i]));
  for (const fp8::GemmDecision& d : shape.float8_policy.decisions) {
    if (d.gemm.layer < 0) continue;
    const std::string prefix = fmt::format("layers.{}.", d.gemm.layer);
    kinds[d.gemm.layer] += fmt::format(" {} {} {}", d.gemm.name.substr(prefix.size()),
                                       d.recipe ? fp8::name_of(d.recipe->name) : "-", d.is_split);
  }
  std::map<std::string, size_t> numbers;
  std::vector<size_t> out;
  for (const std::string& kind : kinds)
    out.push_back(numbers.try_emplace(kind, numbers.size()).first->second);
  return out;
}

int64_t repeats(const std::vector<size_t>& kinds, int64_t head, int64_t motif) {
  const auto size = std::ssize(kinds);
  int64_t end = head + motif;
  while (end < size && kinds[end] == kinds[end - motif]) ++end;
  return std::max<int64_t>((end - head) / motif, 0);
}

StepFigures operator+(const StepFigures& a, const StepFigures& b) {
  return {a.alive_bytes + b.alive_bytes,
          a.nccl_bytes + b.nccl_bytes,
          a.sent_bytes + b.sent_bytes,
          a.calls + b.calls,
          a.flops + b.flops,
          a.bytes + b.bytes,
          a.seconds + b.seconds,
          a.compute + b.compute};
}
StepFigures operator*(int64_t n, const StepFigures& a) {
  const double x = n;
  return {n * a.alive_bytes, n * a.nccl_bytes, n * a.sent_bytes, n * a.calls,
          x * a.flops,       x * a.bytes,      x * a.seconds,    x * a.compute};
}

int64_t alive_bytes(const MemoryPlan& memory) {
  int64_t most = 0;
  for (const MemoryPlan::Phase& phase : memory.phases) most = std::max(most, phase.lower_bound);
  return memory.persistent_bytes + most;
}

// Tables with a row for each product or parameter are rounded up as a whole.
int64_t rounding_of_tables(const MemoryPlan& few, const MemoryPlan& more, int64_t motifs) {
  std::map<std::string_view, int64_t> bytes_of;
  for (const PlannedAllocation& a : few.persistent) bytes_of[a.name] = a.bytes;
  int64_t rounding = 0;
  for (const PlannedAllocation& a : more.persistent) {
    const auto before = bytes_of.find(a.name);
    const bool is_of_block = a.name.starts_with("layers.") || a.name.starts_with("unit ");
    if (is_of_block || before == bytes_of.end()) continue;
    const int64_t added = aligned(a.bytes) - aligned(before->second);
    rounding += aligned(before->second + motifs * (a.bytes - before->second)) -
                (aligned(before->second) + motifs * added);
  }
  return rounding;
}

// Each phase is extrapolated by itself, since another one may be the fullest with more motifs.
int64_t alive_bytes(const MemoryPlan& few, const MemoryPlan& more, int64_t motifs) {
  int64_t most = 0;
  for (size_t i = 0; i < few.phases.size(); ++i) {
    const int64_t bytes = few.phases[i].lower_bound;
    most = std::max(most, bytes + motifs * (more.phases[i].lower_bound - bytes));
  }
  return few.persistent_bytes + motifs * (more.persistent_bytes - few.persistent_bytes) +
         rounding_of_tables(few, more, motifs) + most;
}

}  // namespace

StepFigures figures_of(std::span<const StepPlan> roles, const Machine& machine) {
  const StepPlan& plan =
      *std::ranges::max_element(roles, {}, [](const StepPlan& role) { return role.memory.total_bytes(); });
  StepFigures out{.alive_bytes = alive_bytes(plan.memory),
                  .nccl_bytes = nccl_memory(plan.connections, machine).bytes(),
                  .sent_bytes = plan.traffic.sent_bytes(),
                  .calls = plan.traffic.calls(),
                  .seconds = predict_step(roles, machine).seconds};
  for (const CostRecorder::Total& total : plan.costs) out.flops += total.flops, out.bytes += total.bytes;
  for (const RecordedOperation& o : plan.operations) out.compute += o.calls * machine.time_of(o).seconds;
  return out;
}

StepFigures figures_of(const StepPlan& plan, const Machine& machine) {
  return figures_of(std::span(&plan, 1), machine);
}

StepFigures mean(std::initializer_list<std::pair<int64_t, StepFigures>> blocks) {
  StepFigures sum;
  int64_t count = 0;
  for (const auto& [some, figures] : blocks) sum = sum + some * figures, count += some;
  const double n = count;
  return {sum.alive_bytes / count, sum.nccl_bytes / count, sum.sent_bytes / count, sum.calls / count,
          sum.flops / n,           sum.bytes / n,          sum.seconds / n,        sum.compute / n};
}

BlockPattern block_pattern(const TrainingShape& shape) {
  const std::vector<size_t> kinds = block_kinds(shape);
  const int64_t layers = shape.model.layers;
  BlockPattern best{.head = layers};
  int64_t saved = 0;
  for (int64_t motif = 1; motif * (kFew + 1) < layers; ++motif) {
    for (int64_t head = 0; head + motif * (kFew + 1) <= layers; ++head) {
      const int64_t times = repeats(kinds, head, motif), saves = (times - kFew - 1) * motif;
      if (saves <= saved) continue;
      saved = saves;
      best = {.head = head, .motif = motif, .times = times, .tail = layers - head - motif * times};
    }
  }
  return best;
}

TrainingShape with_motifs(const TrainingShape& shape, const BlockPattern& pattern, int64_t times,
                          const Experiment& e) {
  TrainingShape out = shape;
  const int64_t left_out = (pattern.times - times) * pattern.motif,
                from = pattern.head + times * pattern.motif;
  // Of the groups, what the left out blocks' parameters had.
  const std::vector<ParameterSpec> specs = llama_parameters(shape.model).specs;
  for (size_t p = specs.size(); p-- > 0 && !out.groups.empty();) {
    const int64_t block = specs[p].unit - 1;
    if (block >= from && block < from + left_out) out.groups.erase(out.groups.begin() + p);
  }
  out.model.layers -= left_out;
  auto& recompute = out.model_options.recompute;
  if (!recompute.empty()) recompute.erase(recompute.begin() + from, recompute.begin() + from + left_out);
  std::vector<fp8::GemmDecision>& decisions = out.float8_policy.decisions;
  std::erase_if(decisions, [&](const fp8::GemmDecision& d) {
    return d.gemm.layer >= from && d.gemm.layer < from + left_out;
  });
  for (fp8::GemmDecision& d : decisions) {
    if (d.gemm.layer < from) continue;
    const std::string before = fmt::format("layers.{}.", d.gemm.layer);
    d.gemm.layer -= left_out;
    d.gemm.name = fmt::format("layers.{}.{}", d.gemm.layer, d.gemm.name.substr(before.size()));
  }
  if (shape.float8.is_on()) {
    out.float8 = llama_float8(llama_parameters(out.model), out.float8_policy, e.config.float8,
                              e.mesh.size(MeshAxis::tp));
    out.parameters.float8 = out.float8.weights;
  }
  return out;
}

StepFigures estimate_step(const Experiment& e, Device device, const Machine& machine) {
  const BlockPattern pattern = block_pattern(e.shape);
  auto sample = [&](const TrainingShape& shape) {
    return sample_first_rank(shape, device, e.mesh, Packing::none);
  };
  if (pattern.motif == 0) return figures_of(sample(e.shape), machine);
  const StepPlan few = sample(with_motifs(e.shape, pattern, kFew, e)),
                 more = sample(with_motifs(e.shape, pattern, kFew + 1, e));
  const StepFigures least = figures_of(few, machine);
  const int64_t motifs = pattern.times - kFew;
  StepFigures out = least + motifs * (figures_of(more, machine) + (-1) * least);
  out.alive_bytes = alive_bytes(few.memory, more.memory, motifs);
  return out;
}

}  // namespace ottava
