#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "apps/config/decisions.h"
#include "apps/decide/gemm_cache.h"
#include "apps/predict/planned_machine.h"
#include "apps/predict/step_time.h"
#include "apps/step/step_plan.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

// Products that a run measured to choose their algorithms are times that a plan prefers.

using namespace ottava;
using Catch::Contains;

namespace {

Decisions::Entry kept(const std::string& problem, double milliseconds) {
  return {fmt::format("gemm {} ld 256 256 256 aligned 256 256 256", problem), std::string(128, '7'),
          fmt::format("{:.4f} ms, the fastest of 8", milliseconds)};
}

Decisions on_h100(std::vector<Decisions::Entry> entries) {
  return {.made_for = "matrix products by cuBLASLt 13.1.0 on NVIDIA H100 80GB HBM3",
          .entries = std::move(entries)};
}

MeasuredOperations measured(const Decisions& cache) {
  MeasuredOperations out;
  out.add(to_json(cache), "cache.json");
  return out;
}

const std::vector<std::string> kModel{"--model.dim",        "256", "--model.n_heads",    "4",
                                      "--model.n_kv_heads", "2",   "--model.n_layers",   "2",
                                      "--model.ffn_dim",    "512", "--model.vocab_size", "512",
                                      "--training.seq_len", "64",  "--training.device",  "cuda"};

PlannedExperiment planned(bool float8) {
  std::vector<std::string> overrides = kModel;
  if (float8) overrides.insert(overrides.end(), {"--model.converters", "[quantize.linear.float8]"});
  return plan_experiment(load_config("", overrides), 1, 90);
}

std::vector<RecordedOperation> products(bool float8) {
  const PlannedExperiment p = planned(float8);
  std::vector<RecordedOperation> out =
      record_first_rank(p.experiment.shape, p.device, p.experiment.mesh).operations;
  std::erase_if(out, [](const RecordedOperation& o) { return !o.op.ends_with("matmul"); });
  return out;
}

}  // namespace

TEST_CASE("a product takes what it took when its algorithm was chosen, in whichever direction it is") {
  // Products of w2, whose input is 512 wide. Rows here are tokens, so m and n of the library are swapped.
  const std::vector<RecordedOperation> all = products(false);
  const auto of = [&](const std::string& variant, ProductExtents e) {
    const auto found = std::ranges::find_if(all, [&](const RecordedOperation& o) {
      const ProductExtents x = product_extents(o);
      return o.variant == variant && x.rows == e.rows && x.columns == e.columns && x.inner == e.inner;
    });
    REQUIRE(found != all.end());
    return *found;
  };
  const int64_t tokens = product_extents(all[0]).rows;
  const RecordedOperation forward = of("forward", {tokens, 256, 512}),
                          input = of("input gradient", {tokens, 512, 256}),
                          weight = of("weight gradient", {256, 512, tokens});
  const MeasuredOperations cache =
      measured(on_h100({kept(fmt::format("TN bf16 x bf16 -> bf16 m 256 n {} k 512", tokens), 0.25),
                        kept(fmt::format("NN bf16 x bf16 -> bf16 m 512 n {} k 256", tokens), 0.5),
                        kept(fmt::format("NT bf16 x bf16 -> f32 m 512 n 256 k {} accumulated", tokens), 0.75),
                        {"gemm library", "cuBLASLt 13.1.0", "no product"}}));
  CHECK(cache.size() == 3);
  const auto milliseconds = [&](const RecordedOperation& o) {
    const std::optional<PredictedTime> time = cache.find(o);
    REQUIRE(time.has_value());
    CHECK(time->source == TimeSource::measured);
    return time->seconds * 1e3;
  };
  CHECK(milliseconds(forward) == Approx(0.25));
  CHECK(milliseconds(input) == Approx(0.5));
  CHECK(milliseconds(weight) == Approx(0.75));
  // Another size at the rate of those of its direction.
  const RecordedOperation other = of("forward", {tokens, 1024, 256});
  const std::optional<PredictedTime> between = cache.find(other);
  REQUIRE(between.has_value());
  CHECK(between->source == TimeSource::interpolated);
  CHECK(between->seconds == Approx(0.25e-3 * other.flops / forward.flops));
}

TEST_CASE("FP8 products are kept in one layout, whichever direction they are of") {
  std::set<std::string> directions;
  for (const RecordedOperation& o : products(true)) {
    if (o.precision != Precision::fp8) continue;
    directions.emplace(o.variant);
    const ProductExtents e = product_extents(o);
    INFO(o.op << " " << o.variant << " " << o.operands);
    REQUIRE(e.inner > 0);
    const std::optional<PredictedTime> time =
        measured(on_h100({kept(fmt::format("TN e4m3 by tensor x e5m2 by tensor -> bf16 m {} n {} k {} fast",
                                           e.columns, e.rows, e.inner),
                               0.125)}))
            .find(o);
    REQUIRE(time.has_value());
    CHECK(time->source == TimeSource::measured);
    CHECK(time->seconds == Approx(0.125e-3));
  }
  CHECK(directions == std::set<std::string>{"forward", "input gradient", "weight gradient"});
}

TEST_CASE("a plan takes reports and kept products of its own device, and refuses others") {
  const TemporaryFolder folder;
  const std::string cache = folder / "gemm.json", other = folder / "other.json";
  const PlannedExperiment p = planned(false);
  const StepPlan step = record_first_rank(p.experiment.shape, p.device, p.experiment.mesh);
  const int64_t tokens = product_extents(products(false)[0]).rows;
  std::ofstream(cache) << to_json(
      on_h100({kept(fmt::format("TN bf16 x bf16 -> bf16 m 256 n {} k 512", tokens), 0.25)}));
  Decisions decisions = on_h100({});
  decisions.made_for = "4 ranks of a run";
  std::ofstream(other) << to_json(decisions);
  const auto machine = [&](const char* device, const std::vector<std::string>& calibration) {
    return planned_machine({.device = device, .calibration = calibration}, find_device(device), p);
  };
  const StepTime without = predict_step(step, machine("h100_sxm", {})),
                 with = predict_step(step, machine("h100_sxm", {cache}));
  CHECK(without.by_source[static_cast<size_t>(TimeSource::measured)] == 0);
  CHECK(with.by_source[static_cast<size_t>(TimeSource::measured)] > 0);
  CHECK_THROWS_WITH(machine("b200", {cache}),
                    Contains("--calibration was measured on NVIDIA H100 80GB HBM3") && Contains("--device"));
  CHECK_THROWS_WITH(machine("h100_pcie", {cache}), Contains("this plan is for NVIDIA H100 PCIe 80 GB"));
  CHECK_THROWS_WITH(machine("h100_sxm", {other}), Contains("holds decisions for 4 ranks of a run"));
  std::ofstream(other) << to_json(on_h100({}));
  CHECK_THROWS_WITH(machine("h100_sxm", {other}), Contains("holds no time of a matrix product"));
  std::ofstream(other) << R"({"gemm_flops_per_second":1e12,"copy_bytes_per_second":1e11,"kernels":[]})";
  CHECK_THROWS_WITH(
      machine("h100_sxm", {other}),
      Contains(other + " holds no measured operation: `ottava bench kernels CONFIG --json FILE`"));
  decisions.made_for = "matrix products by cuBLASLt 13.1.0 on NVIDIA H200";
  decisions.entries = {kept("TN bf16 x bf16 -> bf16 m 1 n 1 k 1", 1)};
  std::ofstream(other) << to_json(decisions);
  CHECK_THROWS_WITH(machine("h100_sxm", {cache, other}), Contains("give files of the same device"));
  decisions.made_for = "matrix products by cuBLASLt 13.1.0 on NVIDIA H100 PCIe";
  std::ofstream(other) << to_json(decisions);
  CHECK_THROWS_WITH(
      machine("h100_sxm", {other}),
      Contains("--calibration was measured on NVIDIA H100 PCIe, but this plan is for NVIDIA H100 SXM"));
  const auto report = [&](const std::string& device) {
    std::ofstream(other) << R"({"device": ")" << device
                         << R"(", "copy_bytes_per_second": 1e9, "gemm_flops_per_second": 1e9, "kernels": [)"
                         << R"({"name": "x", "precision": "bf16", "operands": "", "flops": 1, "bytes": 1, )"
                         << R"("seconds": 1}]})";
    return other;
  };
  CHECK_THROWS_WITH(machine("h100_sxm", {report("cpu")}),
                    Contains("--calibration was measured on cpu, but this plan is for NVIDIA H100 SXM"));
  CHECK_THROWS_WITH(machine("h100_sxm", {report("NVIDIA H200")}), Contains("was measured on NVIDIA H200"));
  CHECK_THROWS_WITH(machine("cpu", {report("NVIDIA H200")}), Contains("was measured on NVIDIA H200"));
  CHECK_THROWS_WITH(machine("h100_sxm", {cache, report("NVIDIA H200")}),
                    Contains("give files of the same device"));
  CHECK(machine("h100_sxm", {cache, report("NVIDIA H100 80GB HBM3")}).measured.size() > 1);
}

TEST_CASE("a plan for the GPU that runs measured finds what they kept by itself") {
  const TemporaryFolder folder;
  const std::string library = "cuBLASLt 13.1.0", gpu = "NVIDIA H100 80GB HBM3";
  const DeviceTable h100 = find_device("h100_sxm");
  const auto found = [&](const DeviceTable& device, const std::string& setting) {
    return kept_products(device, setting, library, gpu);
  };
  const MeasurementCache cache = gemm_cache(folder.path(), library + " on " + gpu);
  CHECK(found(h100, folder.path()).empty());
  // An algorithm that was proposed, not measured, has no time.
  cache.write({{"gemm TN bf16 x bf16 -> bf16 m 8 n 8 k 8 ld 8 8 8 aligned 16 16 16", std::string(128, '7'),
                "proposed by the library"}});
  CHECK(found(h100, folder.path()).empty());
  cache.write({kept("TN bf16 x bf16 -> bf16 m 256 n 64 k 512", 0.25)});
  CHECK(found(h100, folder.path()) == cache.file());
  CHECK(MeasuredOperations::read({cache.file()}).device() == gpu);
  CHECK(found(h100, "off").empty());
  CHECK(found(find_device("h100_pcie"), folder.path()).empty());
  CHECK(kept_products(h100, folder.path(), "cuBLASLt 13.2.0", gpu).empty());
  CHECK(kept_products(h100, folder.path(), library, "host execution layer").empty());
}
