#include "apps/commands/bench_kernels_command.h"

#include <algorithm>
#include <iostream>

#include "apps/bench/kernel_cases.h"
#include "apps/commands/command_line.h"
#include "core/cost.h"
#include "core/cuda/blas_plans.h"
#include "core/error.h"
#include "core/io/json.h"

namespace ottava {
namespace {

struct Measured {
  std::string name, problem;
  Bound bound = Bound::copy;
  double bytes = 0, flops = 0, seconds = 0;
  double rate() const { return (bound == Bound::copy ? bytes : flops) / seconds; }
};

void find_cost(const KernelCase& kernel, Device device, Measured& m) {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, device);
  Workbench bench({DeviceType::meta, 0});
  kernel.prepare(bench, stream)(stream);
  for (const CostRecorder::Total& total : recorder.totals()) {
    m.bytes += total.bytes;
    m.flops += total.flops;
  }
}

// The median of batches of calls, each long enough for the clock.
double seconds_per_call(Stream& stream, const std::function<void(Stream&)>& run, double seconds) {
  auto batch = [&](int calls) {
    Event start(stream.device()), end(stream.device());
    start.record(stream);
    for (int i = 0; i < calls; ++i) run(stream);
    end.record(stream);
    end.synchronize();
    return end.milliseconds_since(start) / 1e3;
  };
  batch(1);
  double once = std::max(batch(1), 1e-7);
  int calls = static_cast<int>(std::clamp(seconds / 5 / once, 1.0, 10'000.0));
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(batch(calls) / calls);
  std::sort(times.begin(), times.end());
  return times[2];
}

Measured measure(const KernelCase& kernel, Device device, double seconds) {
  Measured m{.name = kernel.name, .problem = {}, .bound = kernel.bound};
  try {
    find_cost(kernel, device.type == DeviceType::meta ? Device{DeviceType::cuda, 0} : device, m);
    if (device.type == DeviceType::meta) return m;
    Stream stream = device.type == DeviceType::cuda ? Stream::cuda(device.index) : Stream::cpu();
    if (device.type ==
        DeviceType::cuda)  // the first call tries the algorithms of a product; the others take the best
      stream.blas_plans().select(cuda::BlasPlans::Selection::fastest);
    Workbench bench(device);
    m.seconds = seconds_per_call(stream, kernel.prepare(bench, stream), seconds);
    stream.synchronize();
  } catch (const std::exception& error) {
    m.problem = error.what();
  }
  return m;
}

void print_table(const std::vector<Measured>& all, double copy, double gemm, std::ostream& out) {
  if (gemm > 0) {
    out << fmt::format("copy {:.1f} GB/s, bf16 product {:.2f} TFLOP/s\n", copy / 1e9, gemm / 1e12);
    out << fmt::format("{:<46} {:>10} {:>10} {:>10} {:>12}\n", "operation", "us", "GB/s", "TFLOP/s",
                       "of the peak");
  }
  for (const Measured& m : all) {
    if (!m.problem.empty()) {
      out << fmt::format("{:<46} {}\n", m.name, m.problem);
      continue;
    }
    if (m.seconds == 0) {
      out << fmt::format("{:<46} {:>10.1f} MB {:>10.1f} GFLOP\n", m.name, m.bytes / 1e6, m.flops / 1e9);
      continue;
    }
    double share = m.rate() / (m.bound == Bound::copy ? copy : gemm);
    out << fmt::format("{:<46} {:>10.1f} {:>10.1f} {:>10.3f} {:>11.1f}%\n", m.name, m.seconds * 1e6,
                       m.bytes / m.seconds / 1e9, m.flops / m.seconds / 1e12, 100 * share);
  }
}

void print_json(const std::vector<Measured>& all, double copy, double gemm, std::ostream& out) {
  Json report, kernels;
  for (const Measured& m : all) {
    Json kernel;
    kernel.set("name", m.name);
    if (!m.problem.empty()) {
      kernel.set("error", m.problem);
    } else {
      kernel.set("bound", m.bound == Bound::copy ? "copy" : "gemm")
          .set("bytes", m.bytes)
          .set("flops", m.flops);
      if (m.seconds > 0)
        kernel.set("seconds", m.seconds)
            .set("share_of_peak", m.rate() / (m.bound == Bound::copy ? copy : gemm));
    }
    kernels.push(std::move(kernel));
  }
  report.set("copy_bytes_per_second", copy)
      .set("gemm_flops_per_second", gemm)
      .set("kernels", std::move(kernels));
  out << report.dump(1) << '\n';
}

}  // namespace

int run_bench_kernels_command(const BenchKernelsCommand& command, std::ostream& out) {
  if (command.shapes != "8B" && command.shapes != "small") {
    fail<ConfigError>("bench", "--shapes is '{}', expected 8B or small", command.shapes);
  }
  const Device device = parse_device(command.device);
  const KernelShapes shapes = command.shapes == "small" ? small_kernel_shapes() : KernelShapes{};
  std::vector<Measured> all;
  for (const KernelCase& kernel : all_kernel_cases(shapes, device))
    all.push_back(measure(kernel, device, command.seconds));
  double copy = all[0].seconds > 0 ? all[0].rate() : 0, gemm = all[1].seconds > 0 ? all[1].rate() : 0;
  if (command.print == BenchKernelsCommand::Print::json) {
    print_json(all, copy, gemm, out);
  } else {
    print_table(all, copy, gemm, out);
  }
  return std::any_of(all.begin(), all.end(), [](const Measured& m) { return !m.problem.empty(); }) ? 1 : 0;
}

void add_bench_kernels_command(Command& bench) {
  auto o = std::make_shared<BenchKernelsCommand>();
  bench.subcommand("kernels", "each operation alone, against what a copy and a matrix product reach")
      .option("--device", &o->device, "auto, cpu or cuda; meta counts bytes and FLOPs and runs nothing")
      .option("--shapes", &o->shapes, "8B or small")
      .option("--seconds", &o->seconds, "spent on each")
      .flag(
          "--json", [o] { o->print = BenchKernelsCommand::Print::json; }, "for programs")
      .run([o] { return run_bench_kernels_command(*o, std::cout); });
}

}  // namespace ottava
