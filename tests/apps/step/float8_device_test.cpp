#include <map>
#include <string>

#include "apps/decide/workbench.h"
#include "apps/report/float8_report.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"

// FP8 layouts with every kernel of a GPU: gathered codes are transposed for its products, scales of blocks
// with them, and what it lacks is emulated (mxfp8 on sm_90).

using namespace ottava;
using namespace ottava::test;

namespace {

/// Calls of an operation in a recorded step of recipe delayed by layer, of all blocks together.
using Calls = std::map<std::string, int64_t>;
struct DelayedStep {
  Calls quantized, transposed;
  Calls produced;     ///< operations that write codes beside what they are for, by their names
  int64_t bytes = 0;  ///< of memory
};
/// Adds up what was recorded.
void add(DelayedStep& step, const CostRecorder::Total& cost) {
  const bool is_layer = cost.label.starts_with("attention.w") || cost.label.starts_with("feed_forward.w");
  if (is_layer && cost.op == "quantize") step.quantized[cost.label] += cost.calls;
  if (is_layer && cost.op == "transpose_codes") step.transposed[cost.label] += cost.calls;
  if (cost.op.ends_with("_quantize")) step.produced[cost.op] += cost.calls;
}
DelayedStep record_filling(const TrainingShape& shape, Device target) {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, target);
  Arena arena;
  RankGroups ranks = solo_rank_groups();
  TrainingEngine engine(shape, stream, arena, ranks, 0);
  engine.train_step({}, {});
  DelayedStep out;
  for (const CostRecorder::Total& cost : recorder.totals()) add(out, cost);
  MemoryPlan memory = arena.plan();
  memory.resize_persistent("matmul workspace", recorder.workspace_bytes());
  out.bytes = memory.total_bytes();
  return out;
}

/// What plans are made of.
DelayedStep record_full(const TrainingShape& shape, Device target) {
  RankGroups ranks = solo_rank_groups();
  const StepPlan plan = record_step(shape, target, ranks);
  DelayedStep out;
  out.bytes = plan.memory.total_bytes();
  for (const CostRecorder::Total& cost : plan.costs) add(out, cost);
  return out;
}

}  // namespace

// Of two blocks. Passes of their own are left to what attention leaves for wo and to RoPE's gradient, dy of
// wqkv; a GPU's weight gradients read the others' codes transposed.
TEST_CASE("delayed: norms and SwiGLU write the codes themselves, once scales are known, and are planned so") {
  const TrainingShape shape = in_float8(float8_step(), {.recipe_name = "delayed"});
  for (Device device : devices()) {
    INFO("device " << to_string(device));
    const DelayedStep filling = record_filling(shape, device);
    CHECK(filling.produced == Calls{});
    CHECK(filling.quantized ==
          Calls{{"attention.wqkv", 4}, {"attention.wo", 4}, {"feed_forward.w13", 4}, {"feed_forward.w2", 4}});
    const DelayedStep full = record_full(shape, device);
    CHECK(full.bytes == filling.bytes);
    CHECK(full.produced == Calls{{"rms_norm_quantize", 4},
                                 {"rms_norm_backward_quantize", 4},
                                 {"swiglu_quantize", 2},
                                 {"swiglu_backward_quantize", 2}});
    CHECK(full.quantized == Calls{{"attention.wqkv", 2}, {"attention.wo", 2}});
    if (device.type == DeviceType::cuda) {
      CHECK(
          full.transposed ==
          Calls{{"attention.wqkv", 2}, {"attention.wo", 2}, {"feed_forward.w13", 4}, {"feed_forward.w2", 4}});
    } else {
      CHECK(full.transposed == Calls{});
    }
  }
}

TEST_CASE("FP8 steps on every device end where the CPU's do, on one rank and where codes are gathered") {
  const std::vector<std::pair<const char*, Layout>> cases = {{"tensorwise", {}},
                                                             {"tensorwise", {.dp_shard = 2}},
                                                             {"tensorwise", {.tp = 2}},
                                                             {"rowwise", {.dp_shard = 2}},
                                                             {"blockwise", {.dp_shard = 2}},
                                                             {"mxfp8", {}},
                                                             {"mxfp8", {.dp_shard = 2}},
                                                             {"delayed", {}},
                                                             {"delayed", {.dp_shard = 2}}};
  for (const auto& [recipe, layout] : cases) {
    const bool is_emulated = std::string_view(recipe) == "mxfp8";
    const Float8Config config{
        .recipe_name = recipe,
        .emulate = is_emulated,
        .amax_history_length = 1,  // of delayed: the second step's scales are the first's
        .enable_fsdp_float8_all_gather = true,
        .enable_tp_float8_all_gather = true};
    TrainingShape whole = float8_step();
    whole.model.layers = 1;
    whole.model.heads = 2;
    whole.model.head_dim = 32;
    whole.batch = 2;
    whole.groups.clear();
    // Sharded layouts recompute: norms and the activation then write codes.
    if (layout.dp_shard > 1) whole.model_options.recompute = {Recompute::block};
    whole = in_float8(whole, config, layout.tp, is_emulated ? std::optional<int>(90) : std::nullopt);
    const LayoutCurve cpu = train_on(whole, layout, 2, {DeviceType::cpu, 0});
    for (Device device : devices()) {
      INFO(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp << ", device "
                  << to_string(device));
      const LayoutCurve got = train_on(whole, layout, 2, device);
      for (size_t i = 0; i < got.loss.size(); ++i) {
        CHECK(got.loss[i] == Approx(cpu.loss[i]).epsilon(2e-3));
        CHECK(got.grad_norm[i] == Approx(cpu.grad_norm[i]).epsilon(2e-2));
      }
    }
  }
}

// A GPU's memory is not cleared, and what is measured before the first step has filled it with numbers.
TEST_CASE("what is read of FP8 after the first step is that step's, whatever memory held before") {
  const TrainingShape shape = in_float8(float8_step(), {.recipe_name = "tensorwise"});
  const std::vector<int32_t> tokens = random_tokens(shape.batch * shape.sequence, 320, 1);
  for (Device device : devices()) {
    RankGroups ranks = solo_rank_groups();
    Stream stream = stream_on(device);
    const StepPlan plan = record_step(shape, device, ranks);
    Arena arena(plan.memory, device);
    fill_with_numbers(stream, arena.block(), 1e30f);
    TrainingEngine engine(shape, stream, arena, ranks, plan.matmul_workspace_bytes);
    engine.parameters().initialise(7);
    const auto read_step = [&](int64_t step) {
      engine.train_step({.inputs = tokens, .targets = tokens, .document_start = {}, .positions = {}},
                        {.learning_rate = 1e-3, .optimizer_step = step, .valid_tokens = std::ssize(tokens)});
      return read_float8(engine, *ranks.control);
    };
    const std::vector<Float8Operand> first = read_step(1), second = read_step(2);
    REQUIRE(first.size() == 2 * 4 * 3);
    for (size_t i = 0; i < first.size(); ++i) {
      INFO(to_string(device) << ", " << first[i].layer << ", role " << static_cast<int>(first[i].role));
      CHECK(first[i].elements > 0);
      CHECK(first[i].elements == second[i].elements);
      CHECK(first[i].underflow < first[i].elements / 2);
      CHECK(first[i].saturation == 0);
    }
  }
}
