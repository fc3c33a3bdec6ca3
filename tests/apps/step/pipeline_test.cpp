#include <algorithm>
#include <string>
#include <utility>

#include "apps/step/step_plan.h"
#include "core/threads/parallel_for.h"
#include "models/llama/llama_parameters.h"
#include "parallel/pipeline/pipeline_program.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/traffic_formula.h"

// Stages on ranks train as one process with the same micro-batches does: every gradient is the same bit for
// bit.

using namespace ottava;
using namespace ottava::test;
using enum ScheduleKind;

namespace {

constexpr int kSteps = 4;

constexpr std::pair<ScheduleKind, int> kSchedules[] = {{gpipe, 1},
                                                       {one_f_one_b, 1},
                                                       {interleaved_1f1b, 2},
                                                       {looped_bfs, 2},
                                                       {interleaved_zero_bubble, 2},
                                                       {zbv_zero_bubble, 2}};

TrainingShape whole_step() {
  const LlamaConfig model{
      .dim = 64, .layers = 6, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn_dim = 96, .vocab_size = 96};
  TrainingShape shape = tiny_shape(model, 16, 8);
  shape.model_options.loss_chunk_rows = 12;
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

/// The same layout without a pipeline; sums between shards made once per step, as a pipeline makes them.
LayoutCurve without_pipeline(TrainingShape whole, Layout layout) {
  layout.pp = 1;
  whole.parameters.reduce_every_micro_batch = false;
  whole.parameters.reshard = FsdpOptions::Reshard::never;
  return train_on(whole, layout, kSteps);
}

int64_t held(const ParameterSpec& spec, const ShardCoordinates& at) {
  int64_t elements = 0;
  for (const ShardRun& run : shard_runs(spec, at))
    elements += (run.row_end - run.row_begin) * (run.column_end - run.column_begin);
  return elements;
}

/// Requires that the ranks of each pipeline together hold, in the order of the table, what the rank without a
/// pipeline holds.
void require_same_weights(const TrainingShape& whole, const LayoutCurve& stages, const LayoutCurve& one,
                          const Layout& layout) {
  const PipelineLayout pipeline = shape_on(whole, layout).pipeline;
  const Mesh mesh = layout.mesh();
  const size_t inner = one.weights.size();
  std::vector<ParameterSpec> specs = llama_parameters(whole.model).specs;
  align_shards(specs, whole.parameters);
  for (size_t r = 0; r < inner; ++r) {
    std::vector<float> joined;
    std::vector<int64_t> taken(static_cast<size_t>(layout.pp), 0);
    for (const ParameterSpec& spec : specs) {
      for (int p = 0; p < layout.pp; ++p) {
        const size_t rank = static_cast<size_t>(p) * inner + r;
        ShardCoordinates at = mesh.shard_coordinates(static_cast<int>(rank));
        at.units = pipeline.units_of(p);
        const auto from = stages.weights[rank].begin() + taken[static_cast<size_t>(p)];
        joined.insert(joined.end(), from, from + held(spec, at));
        taken[static_cast<size_t>(p)] += held(spec, at);
      }
    }
    REQUIRE(!joined.empty());
    REQUIRE(joined == one.weights[r]);
  }
}

void check(const TrainingShape& whole, const Layout& layout) {
  const LayoutCurve got = train_on(whole, layout, kSteps), want = without_pipeline(whole, layout);
  REQUIRE(want.loss[0] != want.loss[2]);
  for (size_t step = 0; step < kSteps; ++step) {
    INFO("step " << step);
    REQUIRE(got.loss[step] == want.loss[step]);
    REQUIRE(got.grad_norm[step] == Approx(want.grad_norm[step]).epsilon(1e-12));
  }
  require_same_weights(whole, got, want, layout);
}

}  // namespace

TEST_CASE("Muon works on a stage's own matrices, bit for bit as on one rank") {
  TrainingShape whole = whole_step();
  give_matrices_to_muon(whole);
  check(whole, {.micro_batches = 4, .pp = 2});
  check(whole, {.dp_shard = 2, .micro_batches = 4, .pp = 2});
}

TEST_CASE("stages on ranks train bit for bit as one rank does, in every schedule") {
  for (const auto& [schedule, chunks] : kSchedules) {
    const bool takes_few = schedule == gpipe || schedule == looped_bfs;
    for (const int pp : {2, 4}) {
      for (const int64_t micro_batches : {1, 2, 4, 8}) {
        if (micro_batches < pp && !takes_few) continue;
        DYNAMIC_SECTION(name_of(schedule) << " " << pp << ", " << micro_batches << " micro-batches") {
          check(whole_step(),
                {.micro_batches = micro_batches, .pp = pp, .schedule = schedule, .chunks = chunks});
        }
      }
    }
  }
  DYNAMIC_SECTION("Interleaved1F1B of four stages each") {
    check(whole_step(), {.micro_batches = 4, .pp = 2, .schedule = interleaved_1f1b, .chunks = 4});
  }
}

TEST_CASE("stages whose ranks share data, sequences and products change no bit") {
  for (const auto& [schedule, chunks] : kSchedules) {
    for (Layout layout :
         {Layout{.dp_shard = 2, .micro_batches = 4, .pp = 2}, Layout{.tp = 2, .micro_batches = 4, .pp = 2},
          Layout{.dp_replicate = 2, .micro_batches = 2, .pp = 2},
          Layout{.cp = 2, .micro_batches = 4, .pp = 2},
          Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2, .pp = 2}}) {
      layout.schedule = schedule, layout.chunks = chunks;
      DYNAMIC_SECTION(name_of(schedule) << ", " << layout.mesh().describe()) { check(whole_step(), layout); }
    }
  }
  DYNAMIC_SECTION("all five axes, documents") {
    TrainingShape whole = whole_step();
    whole.block_causal = true;
    check(whole, {.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .micro_batches = 2, .pp = 2});
  }
}

TEST_CASE("what a block recomputes, documents, BF16 and other models change nothing about it") {
  const Layout one{.micro_batches = 4, .pp = 2},
      v{.micro_batches = 4, .pp = 2, .schedule = zbv_zero_bubble, .chunks = 2};
  for (const Layout& layout : {one, v}) {
    DYNAMIC_SECTION(name_of(layout.schedule) << " with every block recomputed, documents, in BF16") {
      TrainingShape whole = whole_step();
      whole.parameters.compute = DType::bf16;
      whole.block_causal = true;
      whole.model_options.recompute.assign(6, Recompute::block);
      check(whole, layout);
    }
    DYNAMIC_SECTION(name_of(layout.schedule) << " with elementwise outputs recomputed, QK norm and a bias") {
      TrainingShape whole = whole_step();
      whole.model.qk_norm = whole.model.qkv_bias = true;
      whole.groups.assign(llama_parameters(whole.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
      whole.model_options.recompute.assign(6, Recompute::elementwise);
      check(whole, layout);
    }
    DYNAMIC_SECTION(name_of(layout.schedule) << " with less recomputed on the last rank than on the first") {
      TrainingShape whole = whole_step();
      whole.model_options.recompute = {Recompute::block,       Recompute::all_but_attention,
                                       Recompute::elementwise, Recompute::elementwise,
                                       Recompute::nothing,     Recompute::nothing};
      check(whole, layout);
    }
  }
}

TEST_CASE("a clipped step is that of one process up to the order of the norm's sum") {
  TrainingShape whole = whole_step();
  whole.max_norm = 0.1f;
  const Layout layout{.micro_batches = 4, .pp = 4};
  const LayoutCurve got = train_on(whole, layout, kSteps), want = without_pipeline(whole, layout);
  for (size_t step = 0; step < kSteps; ++step) {
    CHECK(want.grad_norm[step] > whole.max_norm);
    CHECK(got.loss[step] == Approx(want.loss[step]).epsilon(1e-5));
    CHECK(got.grad_norm[step] == Approx(want.grad_norm[step]).epsilon(1e-5));
  }
}

TEST_CASE("FP8 stages run the products of the policy, with the scales of one process") {
  for (const std::string& recipe : all_recipes()) {
    if (recipe == "delayed") continue;  // refused by the configuration
    Float8Config config;
    config.recipe_name = recipe;
    for (const Layout& layout :
         {Layout{.micro_batches = 4, .pp = 2}, Layout{.dp_shard = 2, .micro_batches = 2, .pp = 2},
          Layout{.tp = 2, .micro_batches = 2, .pp = 2},
          Layout{.micro_batches = 2, .pp = 2, .schedule = zbv_zero_bubble, .chunks = 2}}) {
      DYNAMIC_SECTION(recipe << " " << name_of(layout.schedule) << " on " << layout.world_size()) {
        TrainingShape step = float8_step();
        step.model.layers = 4;
        step.max_norm = 0;
        step.groups.assign(llama_parameters(step.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
        check(in_float8(step, config, layout.tp), layout);
      }
    }
  }
}

TEST_CASE("a rank sends what the schedule says, and sends and holds what was planned, in every schedule") {
  set_parallel_threads(1);  // workspaces are by thread
  const TrainingShape whole = whole_step();
  for (const auto& [schedule, chunks] : kSchedules) {
    for (Layout layout : {Layout{.dp_shard = 2, .tp = 2, .micro_batches = 4, .pp = 2},
                          Layout{.cp = 2, .micro_batches = 8, .pp = 4}}) {
      layout.schedule = schedule, layout.chunks = chunks;
      const TrainingShape shape = shape_on(whole, layout);
      const LayoutCurve curve = train_on(whole, layout, 1);
      const PipelineProgram program = make_program(make_schedule(shape.pipeline.shape), Receives::late);
      // The rank's share of a micro-batch's tokens, in f32.
      const int64_t bytes = shape.batch * whole.sequence / layout.tp / layout.cp * whole.model.dim * 4;
      for (int rank = 0; rank < layout.world_size(); ++rank) {
        INFO(name_of(schedule) << ", " << layout.mesh().describe() << ", rank " << rank);
        const int place = layout.mesh().coordinate(MeshAxis::pp, rank);
        const CommStats& measured = curve.measured[static_cast<size_t>(rank)];
        const CommStats::Total sent = measured.sum(Collective::send, "pp");
        CHECK(sent.calls == std::ranges::count(program.transfers, place, &StageTransfer::from));
        CHECK(sent.sent_bytes == sent.calls * bytes);
        CHECK(measured.sum(Collective::recv, "pp").calls ==
              std::ranges::count(program.transfers, place, &StageTransfer::to));
        const StepPlan plan = record_rank(shape, devices().front(), layout.mesh(), rank);
        CHECK(sent_totals(plan.traffic) == sent_totals(measured));
        CHECK(plan.memory.total_bytes() == curve.memory[static_cast<size_t>(rank)].total_bytes());
      }
    }
  }
}

TEST_CASE("weights of a stage are gathered once and gradients summed once, however many micro-batches") {
  const auto between_shards = [](int64_t micro_batches) {
    SentTotals totals = sent_totals(
        train_on(whole_step(), {.dp_shard = 2, .micro_batches = micro_batches, .pp = 2}, 1).measured[0]);
    std::erase_if(totals, [](const auto& t) { return t.first.first != "dp_shard"; });
    return totals;
  };
  const SentTotals of_two = between_shards(2);
  CHECK(of_two.size() == 2);
  CHECK(between_shards(4) == of_two);
}

TEST_CASE("stages hold their parameters only") {
  const LayoutCurve curve = train_on(whole_step(), {.micro_batches = 4, .pp = 4}, 1);
  int64_t elements = 0;
  for (const auto& weights : curve.weights) elements += static_cast<int64_t>(weights.size());
  CHECK(elements == parameter_count(whole_step().model));
  // 1F1B: the first rank keeps four micro-batches, the last one.
  auto activations = [&](size_t rank) {
    for (const MemoryPlan::Row& row : curve.memory[rank].by_category())
      if (row.category == MemoryCategory::activations) return row.bytes;
    FAIL("there are no activations");
    return int64_t{0};
  };
  CHECK(activations(1) > 2 * activations(3));
}
