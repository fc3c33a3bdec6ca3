#include <chrono>
#include <cstdlib>
#include <future>
#include <span>
#include <string_view>

#include "tests/core/ops/attention/cudnn_or_skipped.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/skip.h"

// The whole step with ranks that have a GPU each: FSDP's gathers and sums, tensor parallelism's and those of
// keys and values on NCCL's stream beside the compute stream, against one process on the CPU.

using namespace ottava;
using namespace ottava::test;

namespace {

// Two blocks, heads of 64. The largest matrices travel by themselves, the others packed; three ranks divide
// none.
TrainingShape whole_step(DType compute) {
  const LlamaConfig model{
      .dim = 64, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 64, .ffn_dim = 160, .vocab_size = 320};
  TrainingShape shape = tiny_shape(model, 6, 12);
  shape.parameters.compute = compute;
  shape.max_norm = 0.2f;
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

LayoutCurve on_cpu(const TrainingShape& whole, int steps) {
  return train_on(whole, {}, steps, {DeviceType::cpu, 0});
}

struct Case {
  const char* name;
  Layout layout;
};

void check_against(const LayoutCurve& cpu, const TrainingShape& whole, const Layout& layout,
                   double tolerance) {
  if (nccl_ranks(layout.world_size()) < layout.world_size()) return skip("NCCL needs a GPU for each rank");
  const auto steps = static_cast<int>(cpu.loss.size());
  const LayoutCurve curve = train_over_nccl(whole, layout, steps);
  for (size_t step = 0; step < curve.loss.size(); ++step) {
    INFO("step " << step);
    CHECK(curve.loss[step] == Approx(cpu.loss[step]).epsilon(tolerance));
    CHECK(curve.grad_norm[step] == Approx(cpu.grad_norm[step]).epsilon(10 * tolerance));
  }
  const char* collectives = std::getenv("OTTAVA_CUDA_HOST_COLLECTIVES");
  if (collectives && std::string_view(collectives) != "prompt") return;  // repeated in the first entry
  const LayoutCurve again = train_over_nccl(whole, layout, steps);
  CHECK(again.loss == curve.loss);
  CHECK(again.grad_norm == curve.grad_norm);
}

const std::vector<Case> kShardings = {
    {"FSDP 3, uneven shards, accumulation", {.dp_shard = 3, .micro_batches = 2}},
    {"TP 2", {.tp = 2}},
    {"FSDP 2 x TP 2", {.dp_shard = 2, .tp = 2}},
    {"HSDP 2x2", {.dp_replicate = 2, .dp_shard = 2}},
};

void check(const TrainingShape& whole, const Layout& layout, int steps, double tolerance) {
  check_against(on_cpu(whole, steps), whole, layout, tolerance);
}

/// Losses of all stages on the first sequences: before any step and after each of three steps on all
/// sequences.
std::vector<double> validated(EngineRun& run) {
  run->parameters().initialise(7);
  const TrainingShape& shape = run->shape();
  const int64_t count = shape.micro_batches * shape.batch * shape.sequence;
  const std::vector<int32_t> inputs = random_tokens(count, shape.model.vocab_size, 3),
                             targets = random_tokens(count, shape.model.vocab_size, 4);
  const HostTokens all{.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}};
  const auto first = static_cast<size_t>(shape.validation_batch * shape.validation_sequence);
  std::vector<double> losses;
  for (int step = 0;; ++step) {
    losses.push_back(run->over_stages(run->validate({.inputs = std::span(inputs).first(first),
                                                     .targets = std::span(targets).first(first),
                                                     .document_start = {},
                                                     .positions = {}})));
    if (step == 3) return losses;
    run->train_step(all, {.learning_rate = 2e-3, .optimizer_step = step + 1, .valid_tokens = count});
  }
}

}  // namespace

TEST_CASE("f32 steps over NCCL end where one process on the CPU ends") {
  std::vector<Case> cases = kShardings;
  cases.push_back({"FSDP 2", {.dp_shard = 2}});
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) {
      TrainingShape whole = whole_step(DType::f32);
      whole.batch = 12;
      check(whole, c.layout, 2, 1e-5);
    }
  }
}

TEST_CASE("Muon over NCCL ends where one process on the CPU ends") {
  for (const Case& c : kShardings) {
    DYNAMIC_SECTION(c.name) {
      TrainingShape whole = whole_step(DType::f32);
      whole.batch = 12;
      give_matrices_to_muon(whole);
      whole.muon.precision = DType::f32;
      check(whole, c.layout, 2, 1e-5);
    }
  }
}

TEST_CASE("stages of a pipeline over NCCL end where one process on the CPU ends") {
  const std::vector<Case> cases = {
      {"1F1B 2", {.micro_batches = 3, .pp = 2}},
      {"GPipe 2 x FSDP 2", {.dp_shard = 2, .micro_batches = 2, .pp = 2, .schedule = ScheduleKind::gpipe}},
      {"ZBVZeroBubble 2",
       {.micro_batches = 3, .pp = 2, .schedule = ScheduleKind::zbv_zero_bubble, .chunks = 2}},
      {"Interleaved1F1B 2 x TP 2",
       {.tp = 2, .micro_batches = 2, .pp = 2, .schedule = ScheduleKind::interleaved_1f1b, .chunks = 2}},
      {"LoopedBFS 2", {.micro_batches = 3, .pp = 2, .schedule = ScheduleKind::looped_bfs, .chunks = 2}},
      {"InterleavedZeroBubble 2 x CP 2",
       {.cp = 2,
        .micro_batches = 2,
        .pp = 2,
        .schedule = ScheduleKind::interleaved_zero_bubble,
        .chunks = 2}},
      {"1F1B 2 x FSDP 2 x CP 2 x TP 2", {.dp_shard = 2, .cp = 2, .tp = 2, .micro_batches = 2, .pp = 2}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) {
      TrainingShape whole = whole_step(DType::f32);
      whole.model.layers = 4;
      whole.batch = 12;
      whole.groups.assign(llama_parameters(whole.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
      check(whole, c.layout, 2, 1e-5);
    }
  }
}

TEST_CASE("stages of a pipeline over NCCL validate as one process on the CPU does, after steps too") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs a GPU for each rank");
  TrainingShape whole = whole_step(DType::f32);
  whole.batch = 4;
  whole.validation_batch = 2;
  whole.validation_sequence = whole.sequence;
  EngineRun one(shape_on(whole, {.micro_batches = 2}));
  const std::vector<double> cpu = validated(one);
  CHECK(cpu.back() < cpu.front());
  const Layout layout{.micro_batches = 2, .pp = 2};
  std::vector<double> losses[2];
  run_nccl_mesh(layout, [&](std::unique_ptr<RankGroups> groups, int rank) {
    EngineRun run(shape_on(whole, layout), std::move(groups), {DeviceType::cuda, rank});
    losses[rank] = validated(run);
  });
  for (const std::vector<double>& of_rank : losses) {
    REQUIRE(of_rank.size() == cpu.size());
    for (size_t step = 0; step < cpu.size(); ++step) CHECK(of_rank[step] == Approx(cpu[step]).epsilon(1e-5));
  }
}

TEST_CASE("a step or a validation over NCCL that a rank has not joined has no result") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs a GPU for each rank");
  const bool validates = GENERATE(false, true);
  TrainingShape whole = whole_step(DType::f32);
  whole.batch = 2;
  whole.validation_batch = 1;
  whole.validation_sequence = whole.sequence;
  const std::vector<int32_t> tokens(static_cast<size_t>(whole.sequence), 3);
  const HostTokens sequence{.inputs = tokens, .targets = tokens, .document_start = {}, .positions = {}};
  const Layout layout{.dp_shard = 2};
  std::promise<void> ended;
  bool has_result = false;
  const auto body = [&](std::unique_ptr<RankGroups> groups, int rank) {
    RankState& state = groups->world->state();
    EngineRun run(shape_on(whole, layout), std::move(groups), {DeviceType::cuda, rank});
    run->parameters().initialise(7);
    const auto step = [&](int number) {
      run->train_step(sequence, {.learning_rate = 1e-3, .optimizer_step = number, .valid_tokens = 2});
    };
    step(1);
    if (rank == 1) {
      ended.get_future().wait_for(std::chrono::seconds(60));
      return;
    }
    state.set_timeout_seconds(1);
    try {
      validates ? static_cast<void>(run->validate(sequence)) : step(2);
      has_result = true;
    } catch (const CommError&) {
      ended.set_value();
      throw;
    }
    ended.set_value();
  };
  CHECK_THROWS_WITH(run_nccl_mesh(layout, body), Catch::Contains("made no progress"));
  CHECK_FALSE(has_result);
}

TEST_CASE("ranks that share sequences over NCCL end where one process on the CPU ends") {
  const std::vector<Case> cases = {
      {"CP 2", {.cp = 2}},
      {"CP 3, accumulation", {.cp = 3, .micro_batches = 2}},
      {"CP 2 x TP 2", {.cp = 2, .tp = 2}},
      {"FSDP 2 x CP 2 x TP 2", {.dp_shard = 2, .cp = 2, .tp = 2}},
      {"1F1B 2 x CP 2", {.cp = 2, .micro_batches = 2, .pp = 2}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) {
      TrainingShape whole = whole_step(DType::f32);
      whole.block_causal = true;
      whole.batch = 4;
      whole.model_options.recompute = {Recompute::block, Recompute::elementwise};
      check(whole, c.layout, 2, 1e-5);
    }
  }
}

TEST_CASE("bf16 steps over NCCL end near one process on the CPU") {
  check(whole_step(DType::bf16), {.dp_shard = 2}, 2, 2e-3);
  check(whole_step(DType::bf16), {.tp = 2}, 2, 2e-3);
  check(whole_step(DType::bf16), {.cp = 2}, 2, 2e-3);
  check(whole_step(DType::bf16), {.micro_batches = 2, .pp = 2}, 2, 2e-3);
}

TEST_CASE("ranks that share sequences over NCCL with cuDNN's attention end near one process on the CPU") {
  const auto fused = attention::cudnn_or_skipped();
  if (!fused) return;
  TrainingShape whole = whole_step(DType::bf16);
  whole.batch = 2;
  whole.model.kv_heads = 1;
  const LayoutCurve cpu = on_cpu(whole, 2);
  whole.model_options.fused_attention =
      std::make_shared<cuda::FusedAttention>(0, cuda::FusedAttention::Backward::deterministic);
  check_against(cpu, whole, {.cp = 2}, 2e-3);
  whole.model_options.recompute = {Recompute::block, Recompute::block};
  check_against(cpu, whole, {.dp_shard = 2, .cp = 2}, 2e-3);
}

// Rows have scales of their own, so that each token's forward is that of one rank; a tensor's scale, and
// those of columns over tokens, are of a rank's share, or of a micro-batch.
TEST_CASE("FP8 steps of ranks that share sequences or layers over NCCL end near one process on the CPU") {
  for (const char* recipe : {"tensorwise", "rowwise"}) {
    for (const Layout& layout :
         {Layout{.cp = 2}, Layout{.dp_shard = 2, .cp = 2, .tp = 2}, Layout{.micro_batches = 2, .pp = 2}}) {
      DYNAMIC_SECTION(recipe << " on " << layout.mesh().describe()) {
        TrainingShape whole = float8_step();
        whole.model.heads = 2, whole.model.head_dim = 32;
        whole.batch = 2;
        whole.model_options.recompute = {Recompute::block, Recompute::nothing};
        const Float8Config config{.recipe_name = recipe,
                                  .enable_fsdp_float8_all_gather = true,
                                  .enable_tp_float8_all_gather = true};
        check_against(on_cpu(in_float8(whole, config), 2), in_float8(whole, config, layout.tp, 90), layout,
                      2e-3);
      }
    }
  }
}

TEST_CASE("weights kept, gathered ahead, reduced once: the order of streams changes no bit") {
  if (nccl_ranks(2) < 2) return skip("NCCL needs 2 GPUs");
  TrainingShape whole = whole_step(DType::bf16);
  const Layout layout{.dp_shard = 2, .micro_batches = 3};
  const LayoutCurve usual = train_over_nccl(whole, layout, 2);
  whole.parameters.reshard = FsdpOptions::Reshard::never;
  CHECK(train_over_nccl(whole, layout, 2).grad_norm == usual.grad_norm);
  whole.parameters.reductions_cross = true;
  const LayoutCurve crossing = train_over_nccl(whole, layout, 2);
  CHECK(crossing.grad_norm == usual.grad_norm);
  CHECK((crossing.weights == usual.weights));
  whole.parameters.reductions_cross = false;
  whole.parameters.prefetch = 3;
  CHECK(train_over_nccl(whole, layout, 2).grad_norm == usual.grad_norm);
  whole.parameters.reshard = FsdpOptions::Reshard::always;
  CHECK(train_over_nccl(whole, layout, 2).grad_norm == usual.grad_norm);
}

TEST_CASE("streams of two ranks under the race detector: no races") {
  TrainingShape whole = whole_step(DType::bf16);
  whole.batch = 2;
  whole.sequence = whole.model_options.sequence = 8;
  check(whole, {.dp_shard = 2}, 1, 2e-3);
}
