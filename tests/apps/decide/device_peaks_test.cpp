#include "apps/decide/device_peaks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "apps/decide/decide.h"
#include "core/cuda/blas_plans.h"
#include "core/held_memory.h"
#include "core/io/file.h"
#include "core/log.h"
#include "core/threads/allowed_cpus.h"
#include "core/threads/parallel_for.h"
#include "core/threads/threads_for.h"
#include "tests/support/captured_output.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_training.h"

// What utilization is measured against, where it comes from, and that nothing uses more than all of it.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const Device kCpu{DeviceType::cpu, 0}, kGpu{DeviceType::cuda, 0};

std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  return out;
}

const char *const kUndisturbed = "FLOP/s of the fastest product",
                  *const kDisturbed = "FLOP/s of the fastest product so far, on a busy machine";

/// Of the folder's only file of peaks.
Decisions kept_in(const std::string& folder) {
  REQUIRE(files_in(folder).size() == 1);
  const std::string file = files_in(folder)[0].string();
  return parse_decisions(read_file(file), file);
}

/// Sets the peaks of this CPU that are kept in the folder's only file, as measured on a quiet machine, and
/// changes what else is in it.
void keep_peaks(
    const std::string& folder, const std::string& value,
    const std::function<void(Decisions& kept)>& change = [](Decisions&) {}) {
  find_device_peaks(kCpu, {.cache = folder});
  Decisions kept = kept_in(folder);
  for (Decisions::Entry& e : kept.entries) {
    e.value = value;
    e.reason = kUndisturbed;
  }
  change(kept);
  std::ofstream(files_in(folder)[0], std::ios::trunc) << to_json(kept);
}

/// As a slower moment would have measured them.
void keep_low_peaks(const std::string& folder) { keep_peaks(folder, "2e+06"); }

Experiment settled(const TinyTraining& tiny) {
  const Config c =
      tiny.config("run", {"--metrics.peak_tflops_bf16", "0", "--training.mixed_precision_param", "bfloat16",
                          "--model.converters", "[quantize.linear.float8]",
                          "--quantize.linear.float8.emulate", "true", "--checkpoint.enable", "true"});
  RankGroups ranks = solo_rank_groups();
  Experiment e = resolve_experiment(c, load_tokenizer(c), 1, cuda::compute_capability(0));
  settle_decisions(e, ranks, kGpu, DecisionSource::checkpoint);
  return e;
}

}  // namespace

TEST_CASE("peaks of GPUs are their data sheets': f32 products run on the ordinary cores") {
  CHECK(data_sheet_peaks("NVIDIA H200")->fp32 == 67e12);
  CHECK(data_sheet_peaks("NVIDIA H200")->source == "NVIDIA H200 (dense)");
  CHECK(data_sheet_peaks("NVIDIA H100 80GB HBM3")->fp32 == 67e12);
  CHECK(data_sheet_peaks("NVIDIA H100 PCIe")->fp32 == 51e12);
  CHECK(data_sheet_peaks("NVIDIA H200 NVL")->bf16 == 835e12);
  CHECK(data_sheet_peaks("NVIDIA A100-SXM4-80GB")->fp32 == 19.5e12);
  CHECK(data_sheet_peaks("NVIDIA A100-SXM4-80GB")->fp8 == 312e12);  // it has none: as bf16
  CHECK_FALSE(data_sheet_peaks("NVIDIA GeForce GTX 1080").has_value());
}

TEST_CASE("a peak that the configuration gives takes the place of its own precision's and of no other") {
  DevicePeaks peaks = *data_sheet_peaks("NVIDIA H100 80GB HBM3");
  set_given_peaks(peaks, {.peak_tflops_bf16 = 500});
  CHECK(peaks.bf16 == 500e12);
  CHECK(peaks.fp8 == 1979e12);
  CHECK(peaks.fp32 == 67e12);
  CHECK(peaks.source == "metrics.peak_tflops_bf16");
  peaks = *data_sheet_peaks("NVIDIA H100 80GB HBM3");
  set_given_peaks(peaks, {.peak_tflops_fp8 = 1000});
  CHECK(peaks.fp8 == 1000e12);
  CHECK(peaks.bf16 == 989e12);
  CHECK(peaks.source == "NVIDIA H100 80GB HBM3 (dense)");

  const Device cpu{DeviceType::cpu, 0};
  const DevicePeaks measured =
      find_device_peaks(cpu, {.metrics = {.peak_tflops_fp8 = 3}, .cache = "off", .uses_fp32 = false});
  CHECK(measured.fp8 == 3e12);
  CHECK(measured.bf16 > 0);
  CHECK(measured.source == "measured on this CPU");
  const DevicePeaks given = find_device_peaks(cpu, {.metrics = {.peak_tflops_bf16 = 2}, .cache = "off"});
  CHECK(given.bf16 == 2e12);
  CHECK(given.fp8 == 2e12);  // products of codes are bf16 products on a CPU
  CHECK(given.fp32 == 1e12);
}

TEST_CASE("every precision's peak is measured on the stream's device") {
  for (Device device : devices()) {
    Stream stream = stream_on(device);
    for (Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8}) {
      const bool on_gpu = device.type == DeviceType::cuda;
      if (on_gpu && precision == Precision::fp8 && cuda::compute_capability(0) < 89) continue;
      INFO(name_of(precision) << " on " << to_string(device));
      const int64_t held = held_memory(device).now;
      const size_t plans = on_gpu ? stream.blas_plans().size() : 0;
      CHECK(measure_peak(stream, precision, 0) > 1e3);
      CHECK(held_memory(device).now == held);
      if (on_gpu) CHECK(stream.blas_plans().size() > plans);
    }
  }
}

TEST_CASE(
    "peaks of a GPU in no table are measured on it, decided for the run, and followed when it goes on") {
  if (!has_gpu()) return skip("there is no GPU");
  const std::string gpu = cuda::device_name(0);
  if (data_sheet_peaks(gpu)) return skip("the table has this GPU");
  const TinyTraining tiny;
  const Experiment first = settled(tiny);
  Decisions saved = first.decisions;
  const std::string bf16 = "peak bf16 of " + gpu, fp8 = "peak fp8 of " + gpu;
  REQUIRE(first.decisions.find(bf16) != nullptr);
  CHECK(first.decisions.find(bf16)->reason == "measured on this GPU");
  CHECK((first.decisions.find(fp8) != nullptr) == (cuda::compute_capability(0) >= 89));
  for (Decisions::Entry& entry : saved.entries) {
    if (entry.name.starts_with("peak ")) entry.value = entry.name == fp8 ? "3e+06" : "2e+06";
  }
  const std::string folder = tiny / "run/checkpoint/step-4";
  fs::create_directories(folder);
  std::ofstream(folder + "/decisions.json") << to_json(saved);
  const Experiment again = settled(tiny);
  CHECK((again.decisions == saved));
  const DevicePeaks peaks = find_device_peaks(kGpu, {.decisions = again.decisions});
  CHECK(peaks.bf16 == 2e6);
  CHECK(peaks.fp32 == 2e6);
  CHECK(peaks.fp8 == (saved.find(fp8) ? 3e6 : 2e6));
  CHECK(peaks.source == "measured on this GPU");
}

TEST_CASE(
    "a CPU's peaks are measured once, kept for its threads, and measured again when a step beats them") {
  log::set_level(log::Level::error);
  const TemporaryFolder folder;
  const PeakSearch search{.cache = folder.path()};
  const DevicePeaks first = find_device_peaks(kCpu, search), second = find_device_peaks(kCpu, search);
  const Decisions kept = kept_in(folder.path());
  CHECK(kept.entries.size() == 2);
  CHECK(second.bf16 == std::stod(kept.find("bf16")->value));
  CHECK(second.fp32 == std::stod(kept.find("fp32")->value));
  CHECK(second.bf16 >= 0.999 * first.bf16);  // above it if the machine was busy at first

  keep_low_peaks(folder.path());
  DevicePeaks peaks = find_device_peaks(kCpu, search);
  CHECK(peaks.bf16 == 2e6);
  raise_peaks(peaks, kCpu, search, [](const DevicePeaks& p) { return 2e6 / p.bf16; });  // all of it, no more
  CHECK(peaks.bf16 == 2e6);
  raise_peaks(peaks, kCpu, search, [](const DevicePeaks& p) { return 3e6 / p.bf16; });
  CHECK(peaks.bf16 > 3e6);
  CHECK(peaks.fp8 == peaks.bf16);
  CHECK(find_device_peaks(kCpu, search).bf16 >= 0.999 * peaks.bf16);

  // One that another process has found to be higher meanwhile stays.
  keep_low_peaks(folder.path());
  peaks = find_device_peaks(kCpu, search);
  keep_peaks(folder.path(), "2e+18");
  raise_peaks(peaks, kCpu, search, [](const DevicePeaks& p) { return 3e6 / p.bf16; });
  CHECK(find_device_peaks(kCpu, search).bf16 == 2e18);
  // One that an older program has measured does not.
  keep_peaks(folder.path(), "2e+18", [](Decisions& kept) { kept.made_for.resize(kept.made_for.rfind(',')); });
  CHECK(find_device_peaks(kCpu, search).bf16 < 1e18);

  set_parallel_threads(parallel_threads() + 1);
  find_device_peaks(kCpu, search);
  set_parallel_threads(parallel_threads() - 1);
  CHECK(files_in(folder.path()).size() == 2);
}

TEST_CASE(
    "a CPU's peak that was measured on a busy machine is measured again, and never below what is known") {
  log::set_level(log::Level::error);
  const TemporaryFolder folder;
  const PeakSearch search{.cache = folder.path()};
  {
    // All threads but one have to wait for the core. Four for each core need not: in a product of less than a
    // millisecond some of many threads come too late to have any work.
    const std::vector<int> before = allowed_cpus();
    const ThreadsFor four(4);
    if (parallel_threads() == 4 && !before.empty()) {
      const auto stay_on = [](const std::vector<int>& cpus) {
        parallel_for_index(4, 1, [&](int64_t) { allow_cpus(cpus); });
      };
      const TemporaryFolder busy;
      stay_on({before.front()});
      find_device_peaks(kCpu, {.cache = busy.path()});
      stay_on(before);
      for (const Decisions::Entry& entry : kept_in(busy.path()).entries) CHECK(entry.reason == kDisturbed);
    }
  }
  const auto disturb = [](Decisions& kept) {
    for (Decisions::Entry& entry : kept.entries) entry.reason = kDisturbed;
  };
  keep_peaks(folder.path(), "2e+06");
  CHECK(find_device_peaks(kCpu, search).bf16 == 2e6);
  keep_peaks(folder.path(), "2e+06", disturb);
  const DevicePeaks again = find_device_peaks(kCpu, search);
  CHECK(again.bf16 > 1e8);
  CHECK(again.fp32 > 1e8);
  CHECK(std::stod(kept_in(folder.path()).find("bf16")->value) == Approx(again.bf16).epsilon(1e-3));
  // What was measured before counts on.
  keep_peaks(folder.path(), "2e+18", disturb);
  CHECK(find_device_peaks(kCpu, search).fp32 == 2e18);
  // So does every other product that was.
  keep_peaks(folder.path(), "2e+06", [](Decisions& kept) {
    kept.entries.push_back({"bf16 direct", "4e+18", "FLOP/s of a smaller product, both ways by turns"});
    kept.entries.push_back({"bf16 widened", "3e+18", "FLOP/s of a smaller product, both ways by turns"});
  });
  CHECK(find_device_peaks(kCpu, search).bf16 == 4e18);
  CHECK(find_device_peaks(kCpu, search).fp32 == 3e18);  // to which the other one is widened
}

TEST_CASE("a given peak that a step beats is raised to what the step did, and the log says so") {
  const CapturedOutput log;
  log::set_level(log::Level::info);
  const PeakSearch search{.metrics = {.peak_tflops_bf16 = 1}, .cache = "off"};
  DevicePeaks peaks = find_device_peaks(kCpu, search);
  raise_peaks(peaks, kCpu, search, [](const DevicePeaks& p) { return 4e12 / p.bf16; });
  CHECK(peaks.bf16 == 4e12);
  CHECK(peaks.fp8 == 4e12);
  CHECK(peaks.fp32 == 5e11);  // says nothing of it
  CHECK_THAT(log.text(), Contains("faster than the bf16 peak of 1.000e+12 FLOPS "
                                  "(metrics.peak_tflops_bf16) allows"));
  // Of operations of two precisions the one that is furthest above its peak counts first.
  peaks = {.fp32 = 1e12, .bf16 = 2e12, .fp8 = 2e12, .source = "a data sheet"};
  raise_peaks(peaks, kCpu, search, [](const DevicePeaks& p) { return 1.5e12 / p.fp32; });
  CHECK((peaks.fp32 == 1.5e12 && peaks.bf16 == 2e12 && peaks.fp8 == 2e12));
  raise_peaks(peaks, kCpu, search,
              [](const DevicePeaks& p) { return std::max(6e12 / p.fp32, 5e12 / p.bf16); });
  CHECK((peaks.fp32 == 6e12 && peaks.bf16 == 5e12 && peaks.fp8 == 5e12));
  peaks = {.fp32 = 1e12, .bf16 = 1e12, .fp8 = 1e12, .source = "FP32's"};  // where a run uses no other
  raise_peaks(peaks, kCpu, search, [](const DevicePeaks& p) { return 2e12 / p.fp32; });
  CHECK((peaks.fp32 == 2e12 && peaks.bf16 == 2e12 && peaks.fp8 == 2e12));
  CHECK_THAT(log.text(), Contains("faster than the fp32 peak of 1.000e+12 FLOPS (a data sheet)"));
}

TEST_CASE("a run that beats the peaks kept for this CPU measures them again, keeps them and says so") {
  const TemporaryFolder peaks;
  const TinyTraining tiny;  // sets the number of threads, which a file of peaks is for
  keep_low_peaks(peaks.path());
  const CapturedOutput log;
  log::set_level(log::Level::info);
  tiny.start("run", {"--training.gemm_cache", peaks.path(), "--metrics.peak_tflops_bf16", "0"})->run();
  log::set_level(log::Level::warning);
  CHECK_THAT(log.text(), Contains("(measured on this CPU) allows: utilization is relative to"));
  CHECK(find_device_peaks(kCpu, {.cache = peaks.path()}).fp32 > 1e8);  // 50 times what was kept
  const std::vector<double> parts = logged(tiny / "run", "utilization(%)");
  REQUIRE(parts.size() == 8);
  CHECK(*std::ranges::max_element(parts) <= 100.0001);
}

TEST_CASE("no step is logged with a utilization above 100%") {
  const TinyTraining tiny;
  tiny.start("run", {"--metrics.peak_tflops_bf16", "1e-9"})->run();
  const std::vector<double> parts = logged(tiny / "run", "utilization(%)");
  REQUIRE(parts.size() == 8);
  CHECK(*std::ranges::max_element(parts) == Approx(100));
  for (double part : parts) CHECK(part <= 100.001);
}
