#include "apps/commands/bench_kernels_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <iostream>

#include "apps/bench/operation_bench.h"
#include "apps/commands/command_line.h"
#include "apps/commands/given_output.h"
#include "apps/commands/json_file.h"
#include "apps/config/planned_experiment.h"
#include "apps/decide/cpu_products.h"
#include "apps/decide/device_peaks.h"
#include "apps/decide/operation_times.h"
#include "apps/predict/machine.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"
#include "core/stopwatch.h"
#include "core/sum_of.h"
#include "core/text/counted.h"
#include "core/text/glob.h"
#include "core/text/listed.h"
#include "core/threads/parallel_for.h"
#include "parallel/comm/solo_communicator.h"

namespace ottava {
namespace {

using fmt::print;

constexpr double kMostSeconds = 0.1;  // of one operation

struct Case {
  std::string name;
  RecordedOperation operation;
  bool is_fused = false;  ///< attention that cuDNN computes
  double seconds = 0;     ///< of a call; 0: not measured
  double planned = 0;     ///< the same by the device's table; 0: there is none
  std::string problem;    ///< why not
  bool multiplies() const { return operation.flops > 0; }
  bool multiplies_f32() const { return multiplies() && operation.precision == Precision::fp32; }
  double share_of(const BenchPeaks& peaks) const {
    if (!multiplies()) return operation.bytes / seconds / peaks.bytes_per_second;
    const double peak = multiplies_f32() ? peaks.f32_flops_per_second : peaks.flops_per_second;
    return operation.flops / seconds / peak;
  }
};

/// A step, and what to run its operations with.
struct Step {
  std::vector<Case> cases;
  int64_t workspace_bytes = 0, vocabulary = 0;
  std::vector<std::shared_ptr<cuda::FusedAttention>> fused;  ///< outlive the calls that point to them
};

void add_cases(Step& step, const StepPlan& plan, const std::string& only, const std::string& suffix = {}) {
  for (const RecordedOperation& o : plan.operations) {
    if (!o.call.on) continue;
    std::string name = o.op + (o.variant.empty() ? "" : " " + o.variant) + suffix;
    if (glob_matches(only, name))
      step.cases.push_back({.name = std::move(name), .operation = o, .is_fused = !suffix.empty()});
  }
  step.workspace_bytes = std::max(step.workspace_bytes, plan.matmul_workspace_bytes);
}

// cuDNN's attention beside ours, if cuDNN can do the step's.
void add_fused_attention(Step& step, const PlannedExperiment& planned, const std::string& only) {
  TrainingShape shape = planned.experiment.shape;
  if (shape.parameters.compute != DType::bf16 || shape.block_causal) return;
  for (const auto& [backward, suffix] :
       {std::pair(cuda::FusedAttention::Backward::deterministic, ", cuDNN"),
        std::pair(cuda::FusedAttention::Backward::free, ", cuDNN, not deterministic")}) {
    StepPlan plan;
    try {
      shape.model_options.fused_attention =
          std::make_shared<cuda::FusedAttention>(planned.device.index, backward);
      plan = record_first_rank(shape, planned.device, planned.experiment.mesh);
    } catch (const DeviceError& error) {
      log::warning("bench kernels: attention{} is left out: {}", suffix, error.what());
      continue;
    }
    step.fused.push_back(shape.model_options.fused_attention);
    const bool takes_forward = backward == cuda::FusedAttention::Backward::deterministic;
    std::erase_if(plan.operations, [&](const RecordedOperation& o) {
      return o.op == "attention_forward" ? !takes_forward : !o.op.starts_with("attention");
    });
    add_cases(step, plan, only, suffix);
  }
}

Step record(const PlannedExperiment& planned, const BenchKernelsCommand& command) {
  Step step;
  const Experiment& e = planned.experiment;
  // These first, since there may be no time for the last.
  if (planned.device.is_gpu() && command.work == BenchKernelsCommand::Work::measure &&
      cuda::cudnn_is_built()) {
    add_fused_attention(step, planned, command.only);
  }
  add_cases(step, record_first_rank(e.shape, planned.device, e.mesh), command.only);
  if (step.cases.empty()) {
    fail<ConfigError>("bench", "--only '{}' matches no operation: `bench kernels --count` lists them",
                      command.only);
  }
  step.vocabulary = e.shape.model.vocab_size / e.mesh.size(MeshAxis::tp);
  return step;
}

// The first two operands identify a product; an update has hundreds.
std::string operands_of(const Case& c) {
  constexpr size_t kShown = 4;
  return listed(
      c.operation.call.tensors, [](const Tensor& t) { return describe(t); }, kShown);
}

void print(const Case& c, const BenchPeaks& peaks, std::ostream& out) {
  const RecordedOperation& o = c.operation;
  print(out, "{:<32} {:>6} {:>10.2f} {:>10.3f}", c.name, o.calls, o.bytes / 1e6, o.flops / 1e9);
  if (c.seconds > 0) {
    print(out, " {:>10.1f} {:>10} {:>9.1f}% {:>10.2f}", c.seconds * 1e6,
          c.planned > 0 ? fmt::format("{:.1f}", c.planned * 1e6) : "", 100 * c.share_of(peaks),
          1e3 * c.seconds * o.calls);
  }
  out << "  " << (c.problem.empty() ? operands_of(c) : c.problem) << std::endl;
}

void write_json(const std::string& file, Device device, const std::vector<Case>& cases,
                const BenchPeaks& peaks, const Decisions& decisions) {
  Json report, kernels, decided;
  for (const Decisions::Entry& entry : decisions.entries) decided.set(entry.name, entry.value);
  for (const Case& c : cases) {
    const RecordedOperation& o = c.operation;
    Json kernel;
    kernel.set("name", c.name)
        .set("precision", name_of(o.precision))
        .set("operands", o.operands)
        .set("calls", static_cast<double>(o.calls))
        .set("bound", c.multiplies() ? "gemm" : "copy")
        .set("bytes", o.bytes)
        .set("flops", o.flops);
    if (c.planned > 0) kernel.set("planned_seconds", c.planned);
    if (!c.problem.empty()) kernel.set("error", c.problem);
    if (c.seconds > 0) kernel.set("seconds", c.seconds).set("share_of_peak", c.share_of(peaks));
    kernels.push(std::move(kernel));
  }
  // What was only counted may be for a device that is not here.
  if (peaks.flops_per_second > 0)
    report.set("device", device.is_gpu() ? cuda::device_name(device.index) : to_string(device));
  if (peaks.f32_flops_per_second > 0) report.set("f32_gemm_flops_per_second", peaks.f32_flops_per_second);
  report.set("copy_bytes_per_second", peaks.bytes_per_second)
      .set("gemm_flops_per_second", peaks.flops_per_second)
      .set("decisions", std::move(decided))
      .set("kernels", std::move(kernels));
  write_json_file(file, report);
}

void measure(Case& c, Stream& stream, int64_t vocabulary, double seconds) {
  try {
    Workbench bench(stream.device());
    c.seconds = seconds_per_call(stream, prepare(c.operation, bench, vocabulary), seconds);
    stream.synchronize();
  } catch (const std::exception& error) {
    c.problem = error.what();
  }
}

// By the table of this device, as `ottava plan` would; a CPU's peaks are those just measured.
void plan_cases(std::vector<Case>& cases, Stream& stream, const BenchPeaks& peaks) {
  const Device device = stream.device();
  Machine machine;
  if (device.is_gpu()) {
    const std::optional<DeviceTable> known = device_of_driver(cuda::device_name(device.index));
    if (!known) return;
    machine.device = *known;
  } else {
    machine.device = find_device("cpu");
    machine.device.bf16_tflops = peaks.flops_per_second / 1e12;
    machine.device.fp32_tflops = peaks.f32_flops_per_second / 1e12;
    machine.device.memory_gb_per_s = peaks.bytes_per_second / 1e9;
  }
  for (Case& c : cases) {
    machine.has_cudnn_attention = c.is_fused;
    c.planned = machine.time_of(c.operation).seconds;
  }
}

// Nothing is faster than the device. Products in FP8 are compared with bf16's, and may be.
bool raise_peak(BenchPeaks& peaks, const Case& c) {
  if (!(c.seconds > 0) || !c.multiplies() || c.operation.precision == Precision::fp8 ||
      c.share_of(peaks) <= 1)
    return false;
  (c.multiplies_f32() ? peaks.f32_flops_per_second : peaks.flops_per_second) = c.operation.flops / c.seconds;
  return true;
}

BenchPeaks measure_all(Step& step, const PlannedExperiment& experiment, double seconds, std::ostream& out) {
  const Stopwatch watch;
  auto left = [&] { return seconds - watch.seconds(); };
  Stream stream = stream_like_steps(experiment.experiment, experiment.device);
  // A CPU's attention is planned by the rate of f32 as well: softmax has it.
  const bool takes_f32 = !stream.device().is_gpu() ||
                         std::ranges::any_of(step.cases, [](const Case& c) { return c.multiplies_f32(); });
  BenchPeaks peaks = measure_peaks(stream, takes_f32);
  const auto products = [&] {
    return fmt::format("bf16 product {:.3f} TFLOP/s", peaks.flops_per_second / 1e12) +
           (takes_f32 ? fmt::format(", f32 product {:.3f} TFLOP/s", peaks.f32_flops_per_second / 1e12) : "");
  };
  out << fmt::format("copy {:.1f} GB/s, {}\n", peaks.bytes_per_second / 1e9, products())
      << fmt::format("{:<32} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  operands", "operation", "calls",
                     "MB", "GFLOP", "us", "planned us", "of peak", "ms a step")
      << std::endl;
  plan_cases(step.cases, stream, peaks);
  Workbench memory(experiment.device);
  memory.give_workspace(stream, step.workspace_bytes);
  double milliseconds = 0, planned = 0;
  int64_t not_reached = 0;
  bool is_raised = false;
  for (Case& c : step.cases) {
    if (left() <= 0) {
      ++not_reached;
      continue;
    }
    measure(c, stream, step.vocabulary, std::min(kMostSeconds, left()));
    milliseconds += 1e3 * c.seconds * c.operation.calls;
    planned += 1e3 * c.planned * c.operation.calls;
    is_raised |= raise_peak(peaks, c);
    print(c, peaks, out);
  }
  print(out, "together {:.1f} ms a step{}\n", milliseconds,
        planned > 0 ? fmt::format(", planned {:.1f}", planned) : "");
  if (is_raised)
    print(out, "products of the step were faster than those measured first, and are the peaks: {}\n",
          products());
  if (not_reached > 0)
    print(out, "{} not measured: {:.6g} s were over (--seconds)\n", counted(not_reached, "operation"),
          seconds);
  return peaks;
}

}  // namespace

int run_bench_kernels_command(const BenchKernelsCommand& command, std::ostream& out) {
  require_named_output(command.json, {command.file});
  const Config config = load_config(command.file, command.overrides);
  const bool counts = command.work == BenchKernelsCommand::Work::count;
  if (!counts) parse_device(config.training.device);  // refuses one that is not here
  PlannedExperiment planned = plan_experiment(config);
  Experiment& e = planned.experiment;
  out << notes_text(e.config);
  out << fmt::format("Model {} on {}, rank 0 of {} ({}): {} of {}", model_title(config.model),
                     to_string(planned.device), e.mesh.world_size(), e.mesh.describe(),
                     counted(e.shape.micro_batches * e.shape.batch, "sequence"),
                     counted(e.shape.sequence, "token"))
      << std::endl;
  if (!counts && planned.device.type == DeviceType::cpu) {
    if (config.training.threads > 0) set_parallel_threads(static_cast<int>(config.training.threads));
    SoloCommunicator alone;
    settle_cpu_products(e, alone, planned.device, {});
  }
  Step step = record(planned, command);
  const int64_t calls = sum_of(step.cases, [](const Case& c) { return c.operation.calls; });
  print(out, "{} in {} a step\n", counted(std::ssize(step.cases), "distinct operation"),
        counted(calls, "call"));
  BenchPeaks peaks;
  if (counts) {
    print(out, "{:<32} {:>6} {:>10} {:>10}  operands\n", "operation", "calls", "MB", "GFLOP");
    for (const Case& c : step.cases) print(c, peaks, out);
  } else {
    peaks = measure_all(step, planned, command.seconds, out);
  }
  if (!command.json.empty()) write_json(command.json, planned.device, step.cases, peaks, e.decisions);
  return std::ranges::any_of(step.cases, [](const Case& c) { return !c.problem.empty(); }) ? 1 : 0;
}

void add_bench_kernels_command(Command& bench) {
  auto o = std::make_shared<BenchKernelsCommand>();
  bench
      .experiment(
          "kernels",
          "measure every operation of a training step by itself, compared with a copy and a matrix product",
          *o)
      .option("--only", o->only, "measure only operations whose name matches this glob, such as 'matmul*'")
      .option("--seconds", o->seconds, "time to spend on measuring, in seconds")
      .within(0)
      .flag("--count", o->work, BenchKernelsCommand::Work::count,
            "only count calls, bytes and FLOPs, for a device that need not be present")
      .option("--json", o->json, "write the results to this JSON file")
      .run([o] { return run_bench_kernels_command(*o, std::cout); });
}

}  // namespace ottava
