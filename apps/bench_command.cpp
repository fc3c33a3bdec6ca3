#include "apps/bench_command.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "apps/decide.h"
#include "apps/launch_session.h"
#include "apps/metrics_reporter.h"
#include "apps/trainer.h"
#include "core/ops/matmul.h"

namespace ottava {
namespace {

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

// Measured rates before and after the steps, the higher of each: a busy moment must not make the steps look
// good.
DevicePeaks higher(const DevicePeaks& a, const DevicePeaks& b) {
  DevicePeaks out = a;
  out.fp32 = std::max(a.fp32, b.fp32);
  out.bf16 = std::max(a.bf16, b.bf16);
  out.fp8 = std::max(a.fp8, b.fp8);
  return out;
}

double resident_gib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib / (1 << 20);
  }
  return 0;
}

}  // namespace

int run_bench_command(const BenchCommand& command, std::ostream& out) {
  Config config = load_config(command.file, command.overrides);
  config.checkpoint.enable = false;
  config.metrics.enable_json_lines = config.metrics.enable_tensorboard = false;
  return run_session(config, [&](Session& session) {
    const DevicePeaks peaks_before = find_device_peaks(session.device, config.metrics);
    const double before = resident_gib();
    settle_decisions(session.experiment, session.ranks, session.device, DecisionSource::afresh);
    Trainer trainer(session.experiment, session.ranks, session.device, nullptr);
    trainer.step(nullptr);
    trainer.step(nullptr);
    StepProfile profile;
    std::vector<double> seconds;
    for (int i = 0; i < std::max(command.steps, 1); ++i) {
      auto begin = std::chrono::steady_clock::now();
      trainer.step(&profile);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    const double after = resident_gib();
    if (session.ranks.world->rank() != 0) return;
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2], steps = static_cast<double>(seconds.size());
    const StepPlan& plan = trainer.plan();
    const DevicePeaks peaks = higher(peaks_before, find_device_peaks(session.device, config.metrics));
    const double tokens = static_cast<double>(trainer.experiment().tokens_per_step());
    auto print = [&](const std::string& line) { out << line << '\n'; };
    print(fmt::format("device: {}; GEMM peaks ({}): bf16 {:#.3g} TFLOP/s, fp32 {:#.3g} TFLOP/s",
                      matmul_backend_description(), peaks.source, peaks.bf16 / 1e12, peaks.fp32 / 1e12));
    print(fmt::format("step: median {:.3f} s, fastest {:.3f} s, slowest {:.3f} s of {}", median,
                      seconds.front(), seconds.back(), seconds.size()));
    print(fmt::format("tokens/s: {:.0f} ({:.0f} tokens per step)", tokens / median, tokens));
    double ideal = 0, total = 0;
    auto costs = cost_by_label(plan, peaks);
    std::vector<std::pair<double, std::string>> by_time;
    for (const auto& [label, s] : profile.seconds()) {
      by_time.emplace_back(s / steps, label);
      total += s / steps;
    }
    for (const auto& [label, cost] : costs) ideal += cost.ideal_seconds;
    std::sort(by_time.rbegin(), by_time.rend());
    print(fmt::format("{:<28} {:>10} {:>7} {:>10} {:>12}", "operation", "ms", "share", "GFLOP/s",
                      "utilization"));
    for (const auto& [s, label] : by_time) {
      const LabelCost& cost = costs[label];
      print(fmt::format("{:<28} {:>10.2f} {:>6.1f}% {:>10.1f} {:>11.1f}%", label, s * 1e3, 100 * s / median,
                        cost.flops / s / 1e9, 100 * cost.ideal_seconds / s));
    }
    double quantizing = 0;
    for (const auto& [s, label] : by_time) quantizing += label.ends_with(".quantize") ? s : 0;
    print(fmt::format("{:<28} {:>10.2f} {:>6.1f}%", "outside operations", (median - total) * 1e3,
                      100 * (median - total) / median));
    if (plan.flops(Precision::fp8) > 0) {
      print(fmt::format(
          "FP8: amaxes, quantizing and transposing took {:.2f} ms, {:.1f}% of the step (rows .quantize)",
          quantizing * 1e3, 100 * quantizing / median));
    }
    print(fmt::format("utilization: {:.1f}% (FLOPs as computed / time / measured GEMM peak)",
                      100 * ideal / median));
    print(fmt::format(
        "memory: plan {:.3f} GiB; resident grew by {:.3f} GiB ({:+.1f}% of the plan) over the libraries' "
        "{:.3f} GiB",
        static_cast<double>(plan.memory.total_bytes()) / (1 << 30), after - before,
        100 * ((after - before) * (1 << 30) / static_cast<double>(plan.memory.total_bytes()) - 1), before));
  });
}

}  // namespace ottava
