#include "apps/commands/plan_command.h"

#include <iostream>
#include <map>

#include "apps/commands/command_line.h"
#include "apps/config/planned_experiment.h"
#include "apps/decide/decide.h"
#include "core/counted.h"
#include "core/metrics/step_line.h"

namespace ottava {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void print_memory(const MemoryPlan& memory, std::ostream& out) {
  out << fmt::format("Memory per rank: {:.3f} GiB (persistent {:.3f})\n", gib(memory.total_bytes()),
                     gib(memory.persistent_bytes));
  for (const MemoryPlan::Row& row : memory.by_category())
    out << fmt::format("  {:<16} {:>10.3f} GiB\n", name_of(row.category), gib(row.bytes));
  out << "  largest:";
  for (const PlannedAllocation& a : memory.largest(5))
    out << fmt::format(" {} {:.3f} GiB;", a.name, gib(a.bytes));
  out << '\n';
  for (const MemoryPlan::Phase& phase : memory.phases) {
    out << fmt::format("  phase {:<10} {:>10.3f} GiB packed, {:.3f} GiB alive at most\n", phase.name,
                       gib(phase.bytes), gib(phase.lower_bound));
  }
}

void print_compute(const StepPlan& plan, std::ostream& out) {
  out << "Compute per rank and step (FLOPs as computed):\n";
  for (Precision precision : {Precision::bf16, Precision::fp8, Precision::fp32}) {
    out << fmt::format("  {:<6} {:>14.4f} TFLOP\n", name_of(precision), plan.flops(precision) / 1e12);
  }
  std::map<std::string, double> by_label;
  for (const CostRecorder::Total& t : plan.costs) by_label[t.label] += t.flops;
  for (const auto& [label, flops] : by_label) {
    if (flops > 0) out << fmt::format("    {:<26} {:>14.4f} TFLOP\n", label, flops / 1e12);
  }
}

void print_traffic(const CommStats& stats, std::ostream& out) {
  if (stats.calls() == 0) return;
  out << fmt::format("Traffic per rank and step: {:.3f} GiB sent in {}\n", gib(stats.sent_bytes()),
                     counted(stats.calls(), "call"));
  std::map<std::pair<std::string, std::string>, CommStats::Total> sums;
  for (const CommStats::Total& t : stats.totals()) {
    CommStats::Total& sum = sums[{t.axis, std::string(name_of(t.collective))}];
    sum.calls += t.calls;
    sum.sent_bytes += t.sent_bytes;
  }
  for (const auto& [key, sum] : sums) {
    out << fmt::format("  {:<14} {:<16} {:>8} calls {:>12.3f} GiB sent\n", key.first, key.second, sum.calls,
                       gib(sum.sent_bytes));
  }
}

// What is decided where the run starts: the step of every outcome.
void print_open_decisions(const PlannedExperiment& planned, const StepPlan& first, std::ostream& out) {
  auto print = [&](const std::string& value, const StepPlan& plan) {
    out << fmt::format(
        "  {:<20} {:.3f} GiB of memory; {:.4f} TFLOP in fp8, {:.4f} in bf16; {} bytes sent in {}\n", value,
        gib(plan.memory.total_bytes()), plan.flops(Precision::fp8) / 1e12, plan.flops(Precision::bf16) / 1e12,
        with_commas(plan.traffic.sent_bytes()), counted(plan.traffic.calls(), "call"));
    if (const WeightQuantizing made = weight_quantizing(plan); made.calls > 0)
      out << fmt::format("  {:<20} {} of gathered weights, {:.3f} GiB read and written\n", "",
                         counted(made.calls, "quantization"), made.bytes / (1 << 30));
  };
  for (const auto& [name, by, outcomes] : open_decisions(planned.experiment)) {
    out << fmt::format("Left to the run: {}, decided by {}; this plan is the first of\n", name, by);
    print(outcomes[0].value, first);
    for (size_t i = 1; i < outcomes.size(); ++i)
      print(outcomes[i].value, record_first_rank(outcomes[i].shape, planned.device, planned.experiment.mesh));
  }
}

// Why weights that FP8 products read travel in the compute type, and what cutting at whole blocks costs.
void print_float8(const Experiment& e, const StepPlan& plan, std::ostream& out) {
  const TrainingShape& s = e.shape;
  const std::optional<int>& capability = e.compute_capability;
  if (s.float8_policy.decisions.empty()) return;
  out << "Precision of linear layers";
  if (capability) out << fmt::format(" (compute capability {}.{})", *capability / 10, *capability % 10);
  out << ":\n" << fp8::policy_table(s.float8_policy);
  for (const std::string& remark : float8_remarks(e, plan)) out << remark << "\n";
  const int shards = e.mesh.size(MeshAxis::dp_shard);
  std::vector<ParameterSpec> specs = llama_parameters(s.model).specs;
  align_shards(specs, s.parameters);
  const ParameterSpec* worst = nullptr;
  double most = 1;
  for (const ParameterSpec& spec : specs) {
    const int64_t rows = tensor_parallel_shape(spec, e.mesh.size(MeshAxis::tp))[0];
    const double ratio =
        static_cast<double>(largest_shard_rows(rows, shards, spec.shard_alignment) * shards) /
        static_cast<double>(rows);
    if (spec.shard_alignment > 1 && ratio > most) most = ratio, worst = &spec;
  }
  if (worst)
    out << fmt::format(
        "  shards are whole blocks of 128 rows: the largest of {} holds {:.2f} times its even part\n",
        worst->name, most);
}

}  // namespace

void run_plan_command(const PlanCommand& command, std::ostream& out) {
  const Config config = load_config(command.file, command.overrides);
  const PlannedExperiment planned = plan_experiment(config, command.world_size, command.compute_capability);
  const auto& [device, e] = planned;
  const StepPlan plan = record_first_rank(e.shape, device, e.mesh);
  const LlamaConfig& m = e.shape.model;
  for (const std::string& note : config.provenance.notes) out << note << "\n";
  out << fmt::format("Model {}: {} parameters, vocabulary {}\n", model_title(config.model),
                     with_commas(parameter_count(m)), m.vocab_size);
  out << fmt::format("Ranks: {} ({}), planned for {}; this is rank 0, the fullest\n", e.mesh.world_size(),
                     e.mesh.describe(), device.type == DeviceType::cuda ? "cuda" : "cpu");
  out << fmt::format("Step: {} of {}, {} of {} per rank; model FLOPs per token {:.4e}\n",
                     counted(e.global_batch, "sequence"), counted(e.shape.sequence, "token"),
                     counted(e.shape.micro_batches, "micro-batch", "micro-batches"), e.shape.batch,
                     model_flops_per_token(m, e.shape.sequence));
  print_float8(e, plan, out);
  print_memory(plan.memory, out);
  if (device.type == DeviceType::cuda && config.attention.backend != "flash") {
    out << fmt::format(
        "  attention's workspaces are those of our kernels; cuDNN's are known where it runs "
        "(attention.backend is {})\n",
        config.attention.backend);
  }
  if (saves_asynchronously(config.checkpoint)) {
    out << fmt::format("Host memory per rank: {:.3f} GiB of a snapshot for asynchronous checkpoints\n",
                       gib(snapshot_bytes(e, e.mesh.shard_coordinates(0))));
  }
  print_compute(plan, out);
  print_traffic(plan.traffic, out);
  print_open_decisions(planned, plan, out);
}

void add_plan_command(Command& commands) {
  auto o = std::make_shared<PlanCommand>();
  commands
      .experiment("plan",
                  "memory, compute and traffic of a training step for any number of ranks; needs no GPU", *o)
      .range("--world-size", &o->world_size, {1, 1 << 24},
             "ranks to plan for (default: the fewest that the file's degrees make)")
      .range("--compute-capability", &o->compute_capability, {80, 199},
             "of the GPUs to plan for, such as 100 for 10.0 (default: of this machine's, or 90)")
      .run([o] {
        run_plan_command(*o, std::cout);
        return 0;
      });
}

}  // namespace ottava
