
#include "apps/step/step_plan.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"
#include "tests/apps/step/whole_step.h"
#include "tests/support/traffic_formula.h"

// When ranks send and let go, and what is computed beside it: no bit depends on it, and traffic and memory
// are as the formulas say.

using namespace ottava;
using namespace ottava::test;

namespace {

// The most bytes of gathered parameters and unreduced gradients at one time.
int64_t most_unsharded(const MemoryPlan& plan) {
  std::vector<PlannedAllocation> unsharded;
  for (const PlannedAllocation& a : plan.phases.at(0).allocations) {
    if (a.category == MemoryCategory::unsharded) unsharded.push_back(a);
  }
  return most_alive(unsharded);
}

}  // namespace

TEST_CASE("when gradients are summed and weights are let go changes only the order of sums") {
  TrainingShape whole = whole_step();
  const LayoutCurve single = train_on(whole, {}, kSteps);
  const Layout layout = {.dp_shard = 2, .micro_batches = 3},
               replicas = {.dp_replicate = 2, .dp_shard = 2, .micro_batches = 3};
  const LayoutCurve usual = train_on(whole, layout, kSteps);

  SECTION("reduced once per step") {
    whole.parameters.reduce_every_micro_batch = false;
    check_layout(whole, single, layout);
    check_layout(whole, single, replicas);
    whole.model.tied_embeddings = true;
    whole.groups.clear();
    check_layout(whole, train_on(whole, {}, kSteps), layout);
  }
  const auto gathers = [](const LayoutCurve& curve) {
    return curve.measured[0].sum(Collective::all_gather, "dp_shard").calls;
  };
  SECTION("never resharded: each unit is gathered once") {
    whole.parameters.reshard = FsdpOptions::Reshard::never;
    const LayoutCurve never = train_on(whole, layout, kSteps);
    require_same_bits(never, usual);
    CHECK(gathers(never) < gathers(usual));
  }
  SECTION("always resharded, which is the default") {
    whole.parameters.reshard = FsdpOptions::Reshard::always;
    const LayoutCurve always = train_on(whole, layout, kSteps);
    require_same_bits(always, usual);
    CHECK(gathers(always) == gathers(usual));
    CHECK(most_unsharded(always.memory[0]) == most_unsharded(usual.memory[0]));
  }
  SECTION("sums in bf16") {
    // Between shards, between replicas and both; with norms that tensor-parallel ranks sum in f32 before.
    for (const Layout& l : {layout, replicas, Layout{.dp_replicate = 2, .micro_batches = 3},
                            Layout{.dp_replicate = 2, .dp_shard = 2, .tp = 4}}) {
      INFO(l.dp_replicate << " replicas of " << l.dp_shard << " shards, tp " << l.tp);
      whole.parameters.reduce = DType::f32;
      const LayoutCurve exact = train_on(whole, l, 3);
      whole.parameters.reduce = DType::bf16;
      const LayoutCurve rough = train_on(whole, l, kSteps);
      // Each of S addends and their sum are rounded to 2^-8; over the elements errors are independent.
      require_near(rough, single, 5e-3);
      CHECK(rough.grad_norm[0] != exact.grad_norm[0]);
      require_same_bits(train_slowly_on(whole, l, 3), rough);
    }
  }
}

// Most parameters of a unit are small, and each call between machines takes tens of microseconds.
TEST_CASE("replicas sum the gradients of a unit in one group of calls") {
  for (const DType reduce : {DType::f32, DType::bf16}) {
    const Layout layout{.dp_replicate = 2, .dp_shard = 2, .tp = 2};
    TrainingShape shape = shape_on(whole_step(), layout);
    shape.parameters.reduce = reduce;
    RankGroups ranks(make_dry_run_world(0, layout.world_size()), make_dry_run_world(0, layout.world_size()),
                     layout.mesh());
    const StepPlan plan = record_step(shape, {DeviceType::cpu, 0}, ranks);
    const int64_t units = shape.model.layers + 2,
                  parameters = std::ssize(llama_parameters(shape.model).specs);
    int64_t groups = 0, sums = 0;
    for (const RecordedTransfer& transfer : plan.order.transfers) {
      if (transfer.axis != "dp_replicate") continue;
      ++groups;
      sums += std::ssize(transfer.calls);
    }
    CHECK(groups == units);
    CHECK(sums == parameters);
  }
}

TEST_CASE("what is recomputed changes no bit on any layout") {
  TrainingShape whole = whole_step();
  for (const Layout& layout : {Layout{.dp_shard = 2}, Layout{.dp_shard = 2, .tp = 2}}) {
    whole.model_options.recompute = {};
    const LayoutCurve usual = train_on(whole, layout, 4);
    for (Recompute mode : {Recompute::elementwise, Recompute::all_but_attention, Recompute::block}) {
      whole.model_options.recompute.assign(2, mode);
      require_same_bits(train_on(whole, layout, 4), usual);
    }
    whole.model_options.recompute = {Recompute::nothing, Recompute::block};
    require_same_bits(train_on(whole, layout, 4), usual);
  }
}

TEST_CASE("attention runs again in backward only where its output was not kept") {
  TrainingShape shape = whole_step();
  shape.model.layers = 3;
  shape.groups.clear();
  const auto calls = [&](Recompute mode) {
    shape.model_options.recompute = {mode, Recompute::nothing, mode};
    std::map<std::string, int64_t> out;
    const EngineRun run(shape);
    for (const auto& cost : run.plan().costs) out[cost.op] += cost.calls;
    CHECK(out["attention_backward"] == 3);
    return std::pair(out["attention_forward"], out["rope"]);
  };
  using Calls = std::pair<int64_t, int64_t>;
  CHECK(calls(Recompute::elementwise) == Calls{3, 6});
  CHECK(calls(Recompute::all_but_attention) == Calls{3, 8});
  CHECK(calls(Recompute::block) == Calls{5, 8});
}

TEST_CASE(
    "calls that take their time change no bit: bytes are used again when they have ended, not when they were "
    "asked for") {
  TrainingShape whole = whole_step();
  whole.model.layers = 4;
  whole.groups.clear();
  for (int prefetch : {1, 3}) {
    for (bool every : {true, false}) {
      INFO("prefetch " << prefetch << ", reduced after every micro-batch " << every);
      whole.parameters.prefetch = prefetch;
      whole.parameters.reduce_every_micro_batch = every;
      const Layout layout = {.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2};
      require_same_bits(train_slowly_on(whole, layout, 2), train_on(whole, layout, 2));
    }
  }
  require_same_bits(train_slowly_on(whole, {.dp_shard = 3, .tp = 2}, 2),
                    train_on(whole, {.dp_shard = 3, .tp = 2}, 2));
}

TEST_CASE("what travels packed makes the bits of what travels by itself, of vectors too") {
  TrainingShape whole = whole_step();
  for (const Layout& layout :
       {Layout{.dp_shard = 2}, Layout{.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2},
        Layout{.dp_shard = 2, .tp = 2}}) {
    whole.parameters.packs_below_bytes = FsdpOptions{}.packs_below_bytes;
    const LayoutCurve packed = train_on(whole, layout, 3);
    whole.parameters.packs_below_bytes = 0;
    const LayoutCurve apart = train_on(whole, layout, 3);
    CHECK(apart.measured[0].calls() > packed.measured[0].calls());
    require_same_bits(apart, packed);
    require_same_bits(train_slowly_on(whole, layout, 3), packed);
  }
}

TEST_CASE(
    "the last reduction of a micro-batch may run beside the forward of the next, which changes no bit") {
  TrainingShape whole = whole_step();
  whole.groups.clear();
  whole.parameters.reshard = FsdpOptions::Reshard::never;
  // Memory of gradients that is in use when a later micro-batch begins.
  auto in_flight = [](const LayoutCurve& curve) {
    int64_t count = 0;
    const std::vector<PlannedAllocation>& all = curve.memory[0].phases[0].allocations;
    for (const PlannedAllocation& start : all) {
      if (start.name != "tok_embeddings") continue;
      for (const PlannedAllocation& a : all) {
        const bool is_gradient =
            a.name == "packed.gradient" || a.name.ends_with(".gradient") || a.name.ends_with(".reduced");
        count += is_gradient && a.begin < start.begin && a.end > start.begin;
      }
    }
    return count;
  };
  for (DType reduce : {DType::f32, DType::bf16}) {
    whole.parameters.reduce = reduce;
    const Layout layout = {.dp_shard = 2, .micro_batches = 3};
    whole.parameters.reductions_cross = false;
    const LayoutCurve usual = train_on(whole, layout, 2);
    whole.parameters.reductions_cross = true;
    const LayoutCurve crossing = train_on(whole, layout, 2), slow = train_slowly_on(whole, layout, 2);
    require_same_bits(crossing, usual);
    require_same_bits(slow, usual);
    CHECK((slow.weights == usual.weights));
    CHECK(in_flight(usual) == 0);
    CHECK(in_flight(crossing) > 0);
  }
}

TEST_CASE("units gathered ahead change memory and no bit") {
  TrainingShape whole = whole_step();
  whole.model.layers = 4;
  whole.groups.clear();
  const Layout layout = {.dp_shard = 2};
  const LayoutCurve next = train_on(whole, layout, 3);
  int64_t previous = 0;
  for (int prefetch : {0, 1, 2, 8}) {
    INFO("prefetch " << prefetch);
    whole.parameters.prefetch = prefetch;
    const LayoutCurve curve = train_on(whole, layout, 3);
    require_same_bits(curve, next);
    const int64_t unsharded = most_unsharded(curve.memory[0]);
    CHECK(unsharded > previous);
    previous = unsharded;
  }
}

TEST_CASE("what ranks send is what the formula says, byte for byte") {
  struct Traffic {
    const char* name;
    Layout layout;
    void (*change)(TrainingShape&);
  };
  const auto nothing = [](TrainingShape&) {};
  const std::vector<Traffic> cases = {
      {"one process", {}, nothing},
      {"FSDP 2", {.dp_shard = 2}, nothing},
      {"FSDP 3", {.dp_shard = 3, .micro_batches = 2}, nothing},
      {"FSDP 8", {.dp_shard = 8}, nothing},
      {"FSDP 2 in bf16",
       {.dp_shard = 2},
       [](TrainingShape& s) { s.parameters.compute = s.parameters.reduce = DType::bf16; }},
      {"HSDP 2x2", {.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2}, nothing},
      {"DDP 3", {.dp_replicate = 3, .micro_batches = 2}, nothing},
      {"DDP 3, sums in bf16",
       {.dp_replicate = 3, .micro_batches = 2},
       [](TrainingShape& s) { s.parameters.reduce = DType::bf16; }},
      {"HSDP 2x2 x TP 4, sums in bf16",
       {.dp_replicate = 2, .dp_shard = 2, .tp = 4},
       [](TrainingShape& s) { s.parameters.reduce = DType::bf16; }},
      {"reduced once",
       {.dp_shard = 2, .micro_batches = 3},
       [](TrainingShape& s) { s.parameters.reduce_every_micro_batch = false; }},
      {"never resharded",
       {.dp_shard = 2, .micro_batches = 3},
       [](TrainingShape& s) { s.parameters.reshard = FsdpOptions::Reshard::never; }},
      {"tied", {.dp_shard = 3, .micro_batches = 2}, [](TrainingShape& s) { s.model.tied_embeddings = true; }},
      {"tied, never resharded",
       {.dp_shard = 2, .micro_batches = 2},
       [](TrainingShape& s) {
         s.model.tied_embeddings = true;
         s.parameters.reshard = FsdpOptions::Reshard::never;
       }},
      {"TP 2", {.tp = 2}, nothing},
      {"FSDP 2 x TP 2, all but attention recomputed",
       {.dp_shard = 2, .tp = 2},
       [](TrainingShape& s) { s.model_options.recompute.assign(2, Recompute::all_but_attention); }},
      {"TP 4, recomputed",
       {.tp = 4, .micro_batches = 2},
       [](TrainingShape& s) {
         s.model_options.recompute = {Recompute::elementwise, Recompute::block};
       }},
      {"TP 4, QK norm and bias",
       {.tp = 4},
       [](TrainingShape& s) { s.model.qk_norm = s.model.qkv_bias = true; }},
      {"TP 2, logits gathered", {.tp = 2}, [](TrainingShape& s) { s.model_options.loss_parallel = false; }},
      {"everything", {.dp_replicate = 2, .dp_shard = 2, .tp = 2, .micro_batches = 2}, nothing},
      {"FSDP 3 x TP 2", {.dp_shard = 3, .tp = 2}, nothing},
  };
  for (const Traffic& c : cases) {
    DYNAMIC_SECTION(c.name) {
      TrainingShape whole = whole_step();
      c.change(whole);
      whole.groups.clear();
      const LayoutCurve curve = train_on(whole, c.layout, 1);
      require_traffic_of_formula(whole, c.layout, curve);
    }
  }
}

TEST_CASE("memory of a rank is as planned and falls with the shards") {
  TrainingShape whole = whole_step();
  auto state = [](const MemoryPlan& plan) {
    int64_t bytes = 0;
    for (const PlannedAllocation& a : plan.persistent) {
      bool shards = a.category == MemoryCategory::parameters || a.category == MemoryCategory::compute ||
                    a.category == MemoryCategory::gradients || a.category == MemoryCategory::optimizer;
      if (shards) bytes += a.bytes;
    }
    return bytes;
  };
  const int64_t single = state(train_on(whole, {}, 1).memory[0]);
  CHECK(single == 4 * 4 * parameter_count(whole.model));
  for (int shards : {2, 4, 8}) {
    INFO(shards << " shards");
    const LayoutCurve curve = train_on(whole, {.dp_shard = shards}, 1);
    int64_t sum = 0;
    for (const MemoryPlan& plan : curve.memory) {
      // What travels packed has a copy in the pack: here norms, wo, and with more shards nothing else.
      int64_t packed = 0;
      for (const PlannedAllocation& a : plan.persistent)
        packed += a.category == MemoryCategory::compute ? a.bytes : 0;
      CHECK(state(plan) - packed == single / shards);
      sum += state(plan) - packed;
    }
    CHECK(sum == single);
  }
  // Tensor parallel divides all but the norms, which every rank holds.
  const int64_t norms = (2 * whole.model.layers + 1) * whole.model.dim * 16;
  CHECK(state(train_on(whole, {.tp = 2}, 1).memory[1]) == (single - norms) / 2 + norms);
}
