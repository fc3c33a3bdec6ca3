#include "apps/report/throughput.h"
#include "apps/report/float8_remarks.h"

#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;

namespace {

// llama3 8B: every figure below is made from these and from the formulas beside them.
constexpr double kLayers = 32, kDim = 4096, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kFfn = 14336,
                 kVocab = 128256;
constexpr double kTokens = 8192;  // one sequence of a data rank

/// Weights of the linear layers of all blocks: wqkv, wo, w1 and w3 and w2.
constexpr double kLinear =
    kLayers * (kDim * (kHeads + 2 * kKvHeads) * kHeadDim + kHeads * kHeadDim * kDim + 3 * kDim * kFfn);
/// A product with a weight costs 2 FLOPs per weight and token; there are three: forward, input gradient,
/// weight gradient.
constexpr double kLinearFlops = 3 * 2 * kTokens * kLinear;
constexpr double kOutputFlops = 3 * 2 * kTokens * kDim * kVocab;
/// A query sees the keys up to its own place: T (T + 1) / 2 pairs per head. Forward, scores and values: 2
/// products of 2 D FLOPs a pair; backward makes the scores again and four more: 5 products.
constexpr double kPairs = kTokens * (kTokens + 1) / 2;
constexpr double kAttentionFlops = kLayers * kHeads * kPairs * kHeadDim * 2 * (2 + 5);

/// Parameters without the embedding: linear layers, two norms in each block, the last norm, the output layer.
constexpr double kParameters = kLinear + (2 * kLayers + 1) * kDim + kDim * kVocab;
/// TorchTitan's: 6 per parameter, and 12 L H D T for attention without the causal half.
constexpr double kModelFlops = 6 * kParameters + 12 * kLayers * kHeads * kHeadDim * kTokens;

/// Rank 0 of `ranks` GPUs trains one sequence.
StepPlan plan_8b(int ranks, int tensor_parallel, bool float8, const Overrides& more = {}) {
  Overrides overrides = flavor_at_8192("8B") + Overrides{"--activation_checkpoint.mode", "none",
                                                         "--parallelism.tensor_parallel_degree",
                                                         std::to_string(tensor_parallel)};
  if (float8) overrides = overrides + Overrides{"--model.converters", "quantize.linear.float8"};
  const Experiment e = resolve_experiment(load_config("", overrides + more), nullptr, ranks, 90);
  RankGroups groups(make_dry_run_world(0, ranks), make_dry_run_world(0, ranks), e.mesh);
  return record_step(e.shape, {DeviceType::cuda, 0}, groups);
}

const DevicePeaks kH100{.fp32 = 67e12, .bf16 = 989e12, .fp8 = 1979e12, .source = "NVIDIA H100"};

Throughput rates(const StepPlan& plan, double seconds, int ranks, double sequences) {
  return throughput(plan.flops(), kH100,
                    {.seconds = seconds,
                     .tokens = sequences * kTokens,
                     .ranks = ranks,
                     .model_flops_per_token = kModelFlops});
}

}  // namespace

TEST_CASE("8B at 8192 in bf16: FLOPs and the three figures") {
  const StepPlan plan = plan_8b(8, 1, false);
  CHECK(plan.flops(Precision::bf16) == kLinearFlops + kOutputFlops + kAttentionFlops);
  CHECK(plan.flops(Precision::fp8) == 0);
  CHECK(plan.flops(Precision::fp32) == 0);
  const Throughput t = rates(plan, 1.25, 8, 8);
  CHECK(t.tokens_per_second == Approx(8192 / 1.25));
  CHECK(t.tflops == Approx(kModelFlops * 8192 / 1.25 / 1e12));
  CHECK(t.mfu_percent == Approx(100 * kModelFlops * 8192 / 1.25 / 989e12));
  // Nothing runs in FP8, so its peak says nothing.
  CHECK(t.conservative_mfu_percent == t.mfu_percent);
  CHECK(t.utilization_percent ==
        Approx(100 * (kLinearFlops + kOutputFlops + kAttentionFlops) / 989e12 / 1.25));
}

TEST_CASE("8B at 8192 in FP8: linear layers against the FP8 peak, the rest against that of bf16") {
  const StepPlan plan = plan_8b(8, 1, true);
  CHECK(plan.flops(Precision::fp8) == kLinearFlops);
  CHECK(plan.flops(Precision::bf16) == kOutputFlops + kAttentionFlops);
  CHECK(plan.flops(Precision::fp32) == 0);
  const Throughput t = rates(plan, 0.8, 8, 8);
  CHECK(t.mfu_percent == Approx(100 * kModelFlops * 8192 / 0.8 / 989e12));
  CHECK(t.conservative_mfu_percent == Approx(100 * kModelFlops * 8192 / 0.8 / 1979e12));
  CHECK(t.utilization_percent ==
        Approx(100 * (kLinearFlops / 1979e12 + (kOutputFlops + kAttentionFlops) / 989e12) / 0.8));
  CHECK(t.conservative_mfu_percent < t.utilization_percent);
}

TEST_CASE("8B at 8192 on 64 ranks, 8 to a tensor-parallel group: an eighth of the work each") {
  const StepPlan plan = plan_8b(64, 8, true);
  CHECK(plan.flops(Precision::fp8) == kLinearFlops / 8);
  CHECK(plan.flops(Precision::bf16) == (kOutputFlops + kAttentionFlops) / 8);
  const Throughput t = rates(plan, 0.2, 64, 8);
  CHECK(t.tokens_per_second == Approx(8192 / 8 / 0.2));
  CHECK(t.mfu_percent == Approx(100 * kModelFlops * 8192 / 8 / 0.2 / 989e12));
}

TEST_CASE("ranks that do unequal parts of a step use their devices as well as the mean of them") {
  StepPlan first, last;
  first.costs = {{.label = "layers.0", .op = "matmul", .precision = Precision::bf16, .flops = 1e12}};
  last.costs = {{.label = "layers.1", .op = "matmul", .precision = Precision::bf16, .flops = 3e12},
                {.label = "layers.1", .op = "matmul", .precision = Precision::fp8, .flops = 5e12},
                {.label = "output", .op = "matmul", .precision = Precision::fp32, .flops = 7e12}};
  const std::vector<StepPlan> roles{first, last};
  const StepFlops mean = mean_flops(roles);
  CHECK(mean.bf16 == 2e12);
  CHECK(mean.fp8 == 2.5e12);
  CHECK(mean.fp32 == 3.5e12);
  const StepRate rate{.seconds = 2, .tokens = 1, .ranks = 2, .model_flops_per_token = 1};
  const auto used = [&](const StepFlops& flops) {
    return throughput(flops, kH100, rate).utilization_percent;
  };
  CHECK(used(mean) == Approx((used(first.flops()) + used(last.flops())) / 2));
  std::vector<StepFlops> of_job(2);
  run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    of_job[world.rank()] = mean_flops(roles[world.rank()], world);
  });
  for (const StepFlops& flops : of_job) CHECK(used(flops) == Approx(used(mean)));
}

TEST_CASE("a weight gradient in high precision is a third of the linear layers") {
  const StepPlan plan = plan_8b(8, 1, true, {"--quantize.linear.float8.recipe_name", "rowwise_with_gw_hp"});
  CHECK(plan.flops(Precision::fp8) == kLinearFlops * 2 / 3);
  CHECK(plan.flops(Precision::bf16) == kLinearFlops / 3 + kOutputFlops + kAttentionFlops);
}

TEST_CASE("products that a GPU emulates are bf16 FLOPs, and the report says so") {
  const auto recipe = [](const char* name) {
    return std::vector<std::string>{"--quantize.linear.float8.recipe_name", name,
                                    "--quantize.linear.float8.emulate", "true"};
  };
  const StepPlan native = plan_8b(1, 1, true, recipe("rowwise")),
                 emulated = plan_8b(1, 1, true, recipe("mxfp8"));
  CHECK(native.flops(Precision::fp8) == Approx(kLinearFlops));
  CHECK(emulated.flops(Precision::fp8) == 0);
  CHECK(emulated.flops(Precision::bf16) ==
        Approx(native.flops(Precision::bf16) + native.flops(Precision::fp8)));
  CHECK(rates(emulated, 1, 1, 1).conservative_mfu_percent == rates(emulated, 1, 1, 1).mfu_percent);

  const auto remarks = [&](const char* name) {
    std::vector<std::string> overrides{"--model.converters", "quantize.linear.float8"};
    for (const std::string& o : recipe(name)) overrides.push_back(o);
    return float8_remarks(resolve_experiment(load_config("", overrides), nullptr, 1, 90), {});
  };
  CHECK(remarks("rowwise").empty());
  REQUIRE(remarks("mxfp8").size() == 1);
  CHECK(remarks("mxfp8")[0] ==
        "24 of 24 FP8 layers are emulated by bf16 products of the same codes, because this GPU does not "
        "support theirs: no faster than bf16, and counted as bf16");
}
