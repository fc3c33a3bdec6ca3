#include "apps/commands/bench_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <system_error>

#include "apps/commands/bench_data_command.h"
#include "apps/commands/bench_kernels_command.h"
#include "apps/commands/command_line.h"
#include "apps/decide/decide.h"
#include "apps/decide/device_peaks.h"
#include "apps/devices/available_memory.h"
#include "apps/report/memory_use.h"
#include "apps/report/throughput.h"
#include "apps/train/launch_session.h"
#include "apps/train/trainer.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/ops/matmul/matmul.h"
#include "core/processor_watch.h"
#include "core/stopwatch.h"
#include "core/text/counted.h"
#include "core/text/gib.h"
#include "parallel/sharding/repeated_weights.h"

namespace ottava {
namespace {

using fmt::print;

struct LabelCost {
  double ideal_seconds = 0, flops = 0;
};

std::map<std::string, LabelCost> cost_by_label(const StepPlan& plan, const DevicePeaks& peaks) {
  std::map<std::string, LabelCost> out;
  for (const CostRecorder::Total& t : plan.costs) {
    double peak = t.precision == Precision::fp8    ? peaks.fp8
                  : t.precision == Precision::bf16 ? peaks.bf16
                                                   : peaks.fp32;
    LabelCost& cost = out[t.label];
    cost.flops += t.flops;
    cost.ideal_seconds += t.flops / peak;
  }
  return out;
}

struct Measured {
  std::vector<double> seconds;  ///< of the steps, as training takes them; ascending
  double waited_for_data = 0;   ///< seconds in each of them
  double profiled_seconds = 0;  ///< a step's, while its operations are timed; the mean, as operations' are
  std::vector<std::pair<double, std::string>> operations;  ///< seconds in a step and label; longest first
  double median() const { return seconds[seconds.size() / 2]; }
};

const fp8::AmaxHistory* amax_history(Trainer& trainer) {
  Float8State* float8 = trainer.engine().float8();
  return float8 ? float8->history() : nullptr;
}

// With recipe delayed, steps differ before and after its history is full: all that are measured are of one
// kind.
int settling_steps(Trainer& trainer, Device device, int measured) {
  const int settling = device.is_gpu() ? 3 : 2;  // one as it is, one that is recorded, one launched
  const fp8::AmaxHistory* history = amax_history(trainer);
  const bool fills = history && history->length() < settling + measured;
  return settling + (fills ? static_cast<int>(history->length()) : 0);
}

// On a GPU a step is launched as graphs, in which operations cannot be timed; they are timed in separate
// steps that run one operation after the other. On a CPU the same steps serve both.
Measured measure(Trainer& trainer, Device device, const BenchCommand& command) {
  const int steps = command.steps;
  const bool apart = device.is_gpu();
  const int profiled = apart ? 2 : steps;
  const int settling = settling_steps(trainer, device, steps + (apart ? profiled : 0) + 2 * command.saves);
  for (int i = 0; i < settling; ++i) trainer.step(nullptr);
  StepProfile profile(trainer.stream());
  Measured out;
  const double waited = trainer.data().seconds_waited();
  for (int i = 0; i < steps; ++i)
    out.seconds.push_back(seconds_of([&] { trainer.step(apart ? nullptr : &profile); }));
  out.waited_for_data = (trainer.data().seconds_waited() - waited) / steps;
  std::ranges::sort(out.seconds);
  for (int i = 0; apart && i < profiled; ++i)
    out.profiled_seconds += seconds_of([&] { trainer.step(&profile); }) / profiled;
  if (!apart) out.profiled_seconds = std::accumulate(out.seconds.begin(), out.seconds.end(), 0.0) / steps;
  for (const auto& [label, s] : profile.seconds()) out.operations.emplace_back(s / profiled, label);
  std::sort(out.operations.rbegin(), out.operations.rend());
  return out;
}

struct SaveTimes {
  std::vector<double> without, with;  ///< steps, ascending
  std::vector<double> begun;          ///< until begin() returned
  std::vector<double> written;        ///< from then on until the checkpoint was complete
  /// Seconds of processors: of a step without, until begin() returned, and of what wrote and completed.
  std::vector<double> work_without, work_begun, work_written;
};

double median_of(std::vector<double>& seconds) {
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

// Alternately, so that a machine that slows down slows both.
SaveTimes measure_saves(Trainer& trainer, int saves) {
  SaveTimes out;
  Checkpoints& checkpoints = trainer.checkpoints();
  const auto timed = [](std::vector<double>& seconds, std::vector<double>& work, const auto& what) {
    const ProcessorWatch processors(ProcessorWatch::Of::process);
    seconds.push_back(seconds_of(what));
    work.push_back(processors.seconds());
  };
  for (int i = 0; i < saves; ++i) {
    timed(out.without, out.work_without, [&] { trainer.step(nullptr); });
    timed(out.begun, out.work_begun, [&] { checkpoints.save(trainer.engine(), trainer.state(), false); });
    out.with.push_back(seconds_of([&] { trainer.step(nullptr); }));
    const ProcessorWatch processor(ProcessorWatch::Of::thread);
    out.written.push_back(out.with.back() + seconds_of([&] { checkpoints.finish(); }));
    out.work_written.push_back(processor.seconds() + checkpoints.writing_seconds());
  }
  return out;
}

std::string saves_text(SaveTimes t, const CheckpointConfig& c, int64_t snapshot) {
  const double with = median_of(t.with), without = median_of(t.without), step = median_of(t.work_without),
               begin = median_of(t.work_begun), write = median_of(t.work_written);
  return fmt::format(
      "asynchronous save ({}): step {:.4f} s with one in flight, {:.4f} s without ({:+.1f}%), medians of {}; "
      "begun in {:.4f} s, complete {:.3f} s later; snapshot {:.3f} GiB; of processors: {:.4f} s to begin, "
      "{:.4f} s to write, {:.2f}% of a step's {:.3f} s",
      c.async_mode == CheckpointConfig::Async::async ? "async" : "async_with_pinned_mem", with, without,
      100 * (with / without - 1), t.with.size(), median_of(t.begun), median_of(t.written), gib(snapshot),
      begin, write, 100 * (begin + write) / step, step);
}

// The highest utilization that anything reaches, as a fraction.
double utilization_of(const Measured& m, const StepPlan& plan, const DevicePeaks& peaks, double step) {
  double highest = step;
  std::map<std::string, LabelCost> costs = cost_by_label(plan, peaks);
  for (const auto& [seconds, label] : m.operations)
    highest = std::max(highest, costs[label].ideal_seconds / seconds);
  return highest;
}

void print_operations(const Measured& m, const StepPlan& plan, const DevicePeaks& peaks, std::ostream& out) {
  const double step = m.profiled_seconds;
  double sum = 0, quantizing = 0;
  std::map<std::string, LabelCost> costs = cost_by_label(plan, peaks);
  print(out, "{:<28} {:>10} {:>7} {:>10} {:>12}\n", "operation", "ms", "share", "GFLOP/s", "utilization");
  for (const auto& [s, label] : m.operations) {
    const LabelCost& cost = costs[label];
    print(out, "{:<28} {:>10.2f} {:>6.1f}% {:>10.1f} {:>11.1f}%\n", label, s * 1e3, 100 * s / step,
          cost.flops / s / 1e9, 100 * cost.ideal_seconds / s);
    sum += s;
    quantizing += label.ends_with(".quantize") ? s : 0;
  }
  print(out, "{:<28} {:>10.2f} {:>6.1f}%\n", "outside operations", (step - sum) * 1e3,
        100 * (step - sum) / step);
  if (plan.flops(Precision::fp8) > 0) {
    print(out,
          "FP8: amaxes, quantizing and transposing took {:.2f} ms, {:.1f}% of the step (rows .quantize)\n",
          quantizing * 1e3, 100 * quantizing / step);
  }
}

struct MemoryBefore {
  double resident = 0;
  int64_t gpu_bytes = 0;
};

MemoryBefore memory_before(Device device) {
  return {resident_bytes("VmRSS:"), device.is_gpu() ? gpu_bytes_in_use(device) : 0};
}

std::string memory_text(const MemoryBefore& before, const StepPlan& plan, Device device) {
  const double planned = plan.memory.total_bytes();
  if (device.is_gpu()) {
    return fmt::format(
        "memory: plan {:.3f} GiB; {:.3f} GiB in use on the GPU, {:.3f} GiB of them before the plan's block",
        gib(planned), gib(gpu_bytes_in_use(device)), gib(before.gpu_bytes));
  }
  const double grown = resident_bytes("VmRSS:") - before.resident;
  return fmt::format(
      "memory: plan {:.3f} GiB; resident grew by {:.3f} GiB ({:+.1f}% of the plan) over the libraries' "
      "{:.3f} GiB",
      gib(planned), gib(grown), 100 * (grown / planned - 1), gib(before.resident));
}

std::string_view attention_text(const LlamaModelOptions& o) {
  using cuda::FusedAttention;
  if (!o.fused_attention) return "flash";
  return o.fused_attention->backward() == FusedAttention::Backward::free ? "cudnn, not deterministic"
                                                                         : "cudnn";
}

// How long a step takes and where its time goes.
void print_step(const Measured& m, const StepFlops& flops, Trainer& trainer, const Session& session,
                std::ostream& out) {
  const StepPlan& plan = trainer.plan();
  const Experiment& experiment = trainer.experiment();
  const TrainingShape& shape = experiment.shape;
  const double tokens = experiment.tokens_per_step();
  const StepRate rate{.seconds = m.median(),
                      .tokens = tokens,
                      .ranks = session.ranks.world->size(),
                      .model_flops_per_token = model_flops_per_token(shape.model, shape.sequence)};
  const PeakSearch search{.metrics = experiment.config.metrics,
                          .decisions = experiment.decisions,
                          .cache = experiment.config.training.gemm_cache};
  DevicePeaks peaks = find_device_peaks(session.device, search);
  raise_peaks(peaks, session.device, search, [&](const DevicePeaks& p) {
    return utilization_of(m, plan, p, throughput(flops, p, rate).utilization_percent / 100);
  });
  const Throughput rates = throughput(flops, peaks, rate);
  const auto print = [&]<class... Values>(fmt::format_string<Values...> text, Values&&... values) {
    out << fmt::format(text, std::forward<Values>(values)...) << '\n';
  };
  print("device: {}; GEMM peaks ({}): bf16 {:#.3g} TFLOP/s, fp32 {:#.3g} TFLOP/s",
        session.device.is_gpu() ? cuda::device_name(session.device.index) : matmul_backend_description(),
        peaks.source, peaks.bf16 / 1e12, peaks.fp32 / 1e12);
  if (session.device.type == DeviceType::cpu)
    print("peak of f32 multiply-adds in the caches: {:#.3g} TFLOP/s", measure_multiplier_peak_flops() / 1e12);
  if (experiment.repeats_initial_weights)
    print("initial weights: {} random values of each tensor, repeated", kRepeatedValues);
  print("attention: {}; loss: {} tokens at a time", attention_text(shape.model_options),
        shape.model_options.loss_chunk_rows);
  print("CUDA graphs: {}", trainer.engine().graphs().nodes() > 0 ? "on" : "off");
  if (const fp8::AmaxHistory* history = amax_history(trainer); history && !history->is_full()) {
    print(
        "FP8 scales: each tensor's own, as in the first {} of recipe delayed; later ones are measured with "
        "quantize.linear.float8.amax_history_length 1",
        counted(history->length(), "step"));
  }
  print("step: median {:.3f} s, fastest {:.3f} s, slowest {:.3f} s of {}", m.median(), m.seconds.front(),
        m.seconds.back(), m.seconds.size());
  const double per_second = tokens / m.median();
  print("tokens/s: {:.{}f} ({:.0f} tokens per step)", per_second, per_second < 10 ? 3 : 0, tokens);
  print("data: {:.2f} ms of a step were waited for it", m.waited_for_data * 1e3);
  print("model FLOPs: {:.4g} TFLOP/s on each device (6 (N - N of the embedding) + 12 L H D T per token)",
        rates.tflops);
  print("operations{}, in a step of {:.3f} s:",
        session.device.is_gpu() ? " one after the other, without graphs" : "", m.profiled_seconds);
  print_operations(m, plan, peaks, out);
  print("utilization: {:.1f}% (FLOPs as computed / time / GEMM peak)", rates.utilization_percent);
}

/// The folder of measured saves, which is not there before and after them, whatever happens between.
class SavesFolder {
 public:
  explicit SavesFolder(std::string path) : path_(std::move(path)) { std::filesystem::remove_all(path_); }
  SavesFolder(const SavesFolder&) = delete;
  ~SavesFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

 private:
  std::string path_;
};

}  // namespace

int run_bench_command(const BenchCommand& command, std::ostream& out) {
  if (command.weights != "drawn" && command.weights != "repeated")
    fail<ConfigError>("bench", "--weights is '{}', expected drawn or repeated", command.weights);
  std::optional<Config> loaded = load_session_config(command.file, command.overrides);
  if (!loaded) return 1;
  Config& config = *loaded;
  config.checkpoint.enable = command.saves > 0;
  config.checkpoint.load_only = false;
  config.checkpoint.folder = "bench_save";
  config.checkpoint.load_step = -1;  // of the run's own folder
  config.checkpoint.advance_data_steps = 0;
  if (config.checkpoint.async_mode == CheckpointConfig::Async::disabled)
    config.checkpoint.async_mode = CheckpointConfig::Async::async_with_pinned_mem;
  config.metrics.enable_json_lines = config.metrics.enable_tensorboard = false;
  config.profiling.enable_profiling = false;
  return run_session(config, [&](Session& session) {
    Experiment& experiment = session.experiment;
    const MemoryBefore before = memory_before(session.device);
    std::optional<SavesFolder> folder;
    if (command.saves > 0 && session.ranks.is_first())
      folder.emplace(config.job.in_dump_folder(config.checkpoint.folder));
    experiment.repeats_initial_weights = command.weights == "repeated";
    experiment.keeps_data_index = false;
    settle_decisions(experiment, session.ranks, session.device, DecisionSource::afresh);
    Trainer trainer(experiment, session.ranks, session.device, nullptr);
    const Measured m = measure(trainer, session.device, command);
    const std::string memory = memory_text(before, trainer.plan(), session.device);
    SaveTimes saves;
    if (command.saves > 0) saves = measure_saves(trainer, command.saves);
    const StepFlops flops = mean_flops(trainer.plan(), *session.ranks.control);
    if (!session.ranks.is_first()) return;
    print_step(m, flops, trainer, session, out);
    out << memory << '\n';
    if (command.saves > 0)
      out << saves_text(saves, config.checkpoint, snapshot_bytes(experiment, session.ranks.coordinates))
          << '\n';
  });
}

void add_bench_commands(Command& commands) {
  auto o = std::make_shared<BenchCommand>();
  Command bench =
      commands.subcommand("bench", "measure the speed of training steps, operations and data reading");
  bench
      .experiment("train", "measure tokens per second, time per operation and utilization of a training step",
                  *o)
      .option("--steps", o->steps, "number of measured steps, after a few warm-up steps")
      .within(1)
      .option("--weights", o->weights,
              "initial weights; drawn: random; repeated: a few random values over and over, quicker for "
              "large models")
      .option("--saves", o->saves,
              "number of additional measured steps during which an asynchronous checkpoint is written")
      .within(0)
      .run([o] { return run_bench_command(*o, std::cout); });
  add_bench_kernels_command(bench);
  add_bench_data_command(bench);
}

}  // namespace ottava
