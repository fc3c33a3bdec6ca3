#include <string>

#include "models/llama/llama_parameters.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"

// Stages on ranks train as one process does that takes the same micro-batches: every gradient bit for bit.

using namespace ottava;
using namespace ottava::test;
using enum ScheduleKind;

namespace {

constexpr int kSteps = 4;

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

/// The parameters of all stages of rank 0's pipeline, in the order of the table. Of several inner ranks it
/// takes the first: where parameters are cut, stages of one rank each have a run of the table.
void require_same_weights(const TrainingShape& whole, const LayoutCurve& stages, const LayoutCurve& one,
                          const Layout& layout) {
  const PipelineLayout pipeline = shape_on(whole, layout).pipeline;
  const size_t inner = stages.weights.size() / static_cast<size_t>(layout.pp);
  std::vector<float> joined;
  if (inner > 1 && layout.chunks > 1) return;
  for (size_t r = 0; r < inner; ++r) {
    joined.clear();
    std::vector<size_t> taken(static_cast<size_t>(layout.pp), 0);
    for (const ParameterSpec& spec : llama_parameters(whole.model).specs) {
      int stage = 0;
      while (!pipeline.stages[static_cast<size_t>(stage)].contains(spec.unit)) ++stage;
      const auto rank = static_cast<size_t>(pipeline.shape.rank_of(stage));
      const std::vector<float>& part = stages.weights[rank * inner + r];
      const size_t count = inner == 1         ? static_cast<size_t>(spec.numel())
                           : taken[rank] == 0 ? part.size()
                                              : 0;
      joined.insert(joined.end(), part.begin() + static_cast<std::ptrdiff_t>(taken[rank]),
                    part.begin() + static_cast<std::ptrdiff_t>(taken[rank] + count));
      taken[rank] += count;
    }
    REQUIRE(!joined.empty());
    REQUIRE(joined == one.weights[r]);
  }
}

void check(const TrainingShape& whole, const Layout& layout) {
  const LayoutCurve got = train_on(whole, layout, kSteps), want = without_pipeline(whole, layout);
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

TEST_CASE("stages on ranks train bit for bit as one rank does") {
  struct Case {
    const char* name;
    Layout layout;
  };
  const std::vector<Case> cases = {
      {"1F1B 2", {.micro_batches = 4, .pp = 2}},
      {"1F1B 4", {.micro_batches = 8, .pp = 4}},
      {"GPipe 2, one micro-batch", {.micro_batches = 1, .pp = 2, .schedule = gpipe}},
      {"GPipe 4", {.micro_batches = 4, .pp = 4, .schedule = gpipe}},
      {"1F1B 2 x FSDP 2", {.dp_shard = 2, .micro_batches = 4, .pp = 2}},
      {"1F1B 2 x TP 2", {.tp = 2, .micro_batches = 4, .pp = 2}},
      {"1F1B 2 x DDP 2", {.dp_replicate = 2, .micro_batches = 2, .pp = 2}},
      {"GPipe 2 x FSDP 2 x TP 2", {.dp_shard = 2, .tp = 2, .micro_batches = 2, .pp = 2, .schedule = gpipe}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) { check(whole_step(), c.layout); }
  }
}

TEST_CASE("several stages on a rank, and backward in two, change no bit") {
  struct Case {
    const char* name;
    Layout layout;
  };
  const std::vector<Case> cases = {
      {"Interleaved1F1B", {.micro_batches = 4, .pp = 2, .schedule = interleaved_1f1b, .chunks = 2}},
      {"Interleaved1F1B 2x4", {.micro_batches = 4, .pp = 2, .schedule = interleaved_1f1b, .chunks = 4}},
      {"LoopedBFS", {.micro_batches = 4, .pp = 2, .schedule = looped_bfs, .chunks = 2}},
      {"LoopedBFS, one micro-batch", {.micro_batches = 1, .pp = 4, .schedule = looped_bfs, .chunks = 2}},
      {"InterleavedZeroBubble",
       {.micro_batches = 4, .pp = 2, .schedule = interleaved_zero_bubble, .chunks = 2}},
      {"ZBVZeroBubble", {.micro_batches = 8, .pp = 4, .schedule = zbv_zero_bubble, .chunks = 2}},
      {"ZBVZeroBubble, few micro-batches",
       {.micro_batches = 4, .pp = 4, .schedule = zbv_zero_bubble, .chunks = 2}},
      {"Interleaved1F1B x FSDP 2",
       {.dp_shard = 2, .micro_batches = 4, .pp = 2, .schedule = interleaved_1f1b, .chunks = 2}},
      {"ZBVZeroBubble x FSDP 2 x TP 2",
       {.dp_shard = 2, .tp = 2, .micro_batches = 2, .pp = 2, .schedule = zbv_zero_bubble, .chunks = 2}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) { check(whole_step(), c.layout); }
  }
}

TEST_CASE("what a block recomputes, documents, BF16 and other models change nothing about it") {
  const Layout one{.micro_batches = 4, .pp = 2},
      v{.micro_batches = 4, .pp = 2, .schedule = zbv_zero_bubble, .chunks = 2};
  for (const Layout& layout : {one, v}) {
    DYNAMIC_SECTION(name_of(layout.schedule) << " with every block recomputed, in BF16") {
      TrainingShape whole = whole_step();
      whole.parameters.compute = DType::bf16;
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
  }
}

TEST_CASE("a clipped step is that of one process up to the order of the norm's sum") {
  TrainingShape whole = whole_step();
  whole.max_norm = 0.1f;
  const Layout layout{.micro_batches = 4, .pp = 4};
  const LayoutCurve got = train_on(whole, layout, kSteps), want = without_pipeline(whole, layout);
  for (size_t step = 0; step < kSteps; ++step) {
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
          Layout{.micro_batches = 2, .pp = 2, .schedule = zbv_zero_bubble, .chunks = 2}}) {
      DYNAMIC_SECTION(recipe << " " << name_of(layout.schedule) << " on " << layout.world_size()) {
        TrainingShape step = float8_step();
        step.model.layers = 4;
        step.max_norm = 0;
        step.groups.assign(llama_parameters(step.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
        check(in_float8(step, config), layout);
      }
    }
  }
}

TEST_CASE("a rank sends what the schedule says, and what was planned") {
  const TrainingShape whole = whole_step();
  const Layout layout{.dp_shard = 2, .tp = 2, .micro_batches = 4, .pp = 2};
  const LayoutCurve curve = train_on(whole, layout, 1);
  // Of one micro-batch's tokens half, with tensor parallel, in f32.
  const int64_t bytes = whole.batch / 8 * whole.sequence / 2 * whole.model.dim * 4;
  for (size_t rank = 0; rank < curve.measured.size(); ++rank) {
    INFO("rank " << rank);
    const CommStats::Total sent = curve.measured[rank].sum(Collective::send, "pp"),
                           received = curve.measured[rank].sum(Collective::recv, "pp");
    CHECK(sent.calls == layout.micro_batches);
    CHECK(received.calls == layout.micro_batches);
    CHECK(sent.sent_bytes == layout.micro_batches * bytes);
    CHECK(curve.planned[rank].sum(Collective::send, "pp").sent_bytes == sent.sent_bytes);
    CHECK(curve.planned[rank].sent_bytes() == curve.measured[rank].sent_bytes());
  }
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
    return int64_t{0};
  };
  CHECK(activations(1) > 2 * activations(3));
}
