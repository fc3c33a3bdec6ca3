#include <algorithm>
#include <cmath>
#include <string>

#include "models/llama/llama_parameters.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/traffic_formula.h"

// Every layout trains as one process does: FP32, the same seed, no checkpoint to start from. Sums are made in
// another order, nothing else differs.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kSteps = 20;

// Two of its matrices per block are large enough to be gathered alone, the others travel packed; three ranks
// divide none.
TrainingShape whole_step() {
  const LlamaConfig model{
      .dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn_dim = 160, .vocab_size = 320};
  TrainingShape shape = tiny_shape(model, 24, 12);
  shape.model_options.loss_chunk_rows = 40;
  shape.max_norm = 1;
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

TrainingShape with_model(void (*change)(LlamaConfig&)) {
  TrainingShape shape = whole_step();
  change(shape.model);
  shape.groups.assign(llama_parameters(shape.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

void require_near(const LayoutCurve& got, const LayoutCurve& want, double tolerance) {
  REQUIRE(got.loss.size() <= want.loss.size());
  for (size_t step = 0; step < got.loss.size(); ++step) {
    INFO("step " << step);
    REQUIRE(got.loss[step] == Approx(want.loss[step]).epsilon(tolerance));
    REQUIRE(got.grad_norm[step] == Approx(want.grad_norm[step]).epsilon(tolerance));
  }
}

void require_same_bits(const LayoutCurve& again, const LayoutCurve& first) {
  for (size_t step = 0; step < again.loss.size(); ++step) {
    INFO("step " << step);
    REQUIRE(again.loss[step] == first.loss[step]);
    REQUIRE(again.grad_norm[step] == first.grad_norm[step]);
  }
}

void check_layout(const TrainingShape& whole, const LayoutCurve& single, const Layout& layout,
                  double tolerance = 1e-5) {
  const LayoutCurve curve = train_on(whole, layout, kSteps);
  require_near(curve, single, tolerance);
  require_same_bits(train_on(whole, layout, 3), curve);
}

// The most bytes of gathered parameters and unreduced gradients at one time.
int64_t most_unsharded(const MemoryPlan& plan) {
  std::vector<PlannedAllocation> unsharded;
  for (const PlannedAllocation& a : plan.phases.at(0).allocations) {
    if (a.category == MemoryCategory::unsharded) unsharded.push_back(a);
  }
  return most_alive(unsharded);
}

struct Case {
  const char* name;
  Layout layout;
};

}  // namespace

TEST_CASE("a run learns, and its curve is not flat") {
  const LayoutCurve single = train_on(whole_step(), {}, kSteps);
  CHECK(single.loss.back() < 0.9 * single.loss.front());
  require_same_bits(train_on(whole_step(), {}, 3), single);
}

TEST_CASE("data parallel layouts train as one process does") {
  const TrainingShape whole = whole_step();
  const LayoutCurve single = train_on(whole, {}, kSteps);
  const std::vector<Case> cases = {
      {"FSDP 2", {.dp_shard = 2}},
      {"FSDP 3: uneven shards", {.dp_shard = 3}},
      {"FSDP 4", {.dp_shard = 4}},
      {"FSDP 8", {.dp_shard = 8}},
      {"HSDP 2x2", {.dp_replicate = 2, .dp_shard = 2}},
      {"DDP 2", {.dp_replicate = 2}},
      {"accumulation on one process", {.micro_batches = 4}},
      {"accumulation on FSDP 2", {.dp_shard = 2, .micro_batches = 3}},
      {"accumulation on HSDP 2x2", {.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2}},
      {"accumulation on DDP 2", {.dp_replicate = 2, .micro_batches = 2}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) { check_layout(whole, single, c.layout); }
  }
}

TEST_CASE("tensor parallel layouts train as one process does") {
  const TrainingShape whole = whole_step();
  const LayoutCurve single = train_on(whole, {}, kSteps);
  const std::vector<Case> cases = {
      {"TP 2", {.tp = 2}},
      {"TP 4: key/value heads are shared by two ranks", {.tp = 4}},
      {"FSDP 2 x TP 2", {.dp_shard = 2, .tp = 2}},
      {"FSDP 2 x TP 4: shared heads, cut once more", {.dp_shard = 2, .tp = 4}},
      {"FSDP 3 x TP 2: uneven slices", {.dp_shard = 3, .tp = 2}},
      {"HSDP 2x2 x TP 2", {.dp_replicate = 2, .dp_shard = 2, .tp = 2}},
      {"DDP 2 x TP 2, accumulation", {.dp_replicate = 2, .tp = 2, .micro_batches = 2}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.name) { check_layout(whole, single, c.layout); }
  }
}

TEST_CASE("the z-loss is the same on every layout, also where the vocabulary is cut among ranks") {
  TrainingShape whole = whole_step();
  whole.model_options.z_loss_weight = 0.01f;
  const LayoutCurve single = train_on(whole, {}, 5), without = train_on(whole_step(), {}, 1);
  CHECK(single.loss[0] == without.loss[0]);
  CHECK(single.grad_norm[0] != without.grad_norm[0]);
  CHECK(without.z_loss[0] == 0);
  CHECK(single.memory[0].total_bytes() >= without.memory[0].total_bytes());
  whole.model_options.loss_parallel = GENERATE(true, false);
  for (const Layout& layout : {Layout{.tp = 4}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2},
                               Layout{.dp_replicate = 2, .dp_shard = 2}}) {
    const LayoutCurve curve = train_on(whole, layout, 5);
    require_near(curve, single, 1e-5);
    for (size_t step = 0; step < 5; ++step) {
      CHECK(single.z_loss[step] > 0.01 * 25);  // log 320 is 5.8
      CHECK(curve.z_loss[step] == Approx(single.z_loss[step]).epsilon(1e-5));
    }
  }
}

TEST_CASE("products and transfers in blocks make the bits of those in bulk, and send as much") {
  struct Overlapped {
    const char* name;
    Layout layout;
    void (*change)(TrainingShape&);
  };
  const auto nothing = [](TrainingShape&) {};
  const std::vector<Overlapped> cases = {
      {"TP 2", {.tp = 2}, nothing},
      {"TP 4, BF16", {.tp = 4}, [](TrainingShape& s) { s.parameters.compute = DType::bf16; }},
      {"FSDP 2 x TP 4, QK norm and bias, recomputed",
       {.dp_shard = 2, .tp = 4, .micro_batches = 2},
       [](TrainingShape& s) {
         s.model.qk_norm = s.model.qkv_bias = true;
         s.model_options.recompute = {Recompute::block, Recompute::elementwise};
       }},
      {"pipeline in two halves",
       {.tp = 2, .micro_batches = 4, .pp = 2, .schedule = ScheduleKind::zbv_zero_bubble, .chunks = 2},
       [](TrainingShape& s) { s.model.layers = 4; }},
  };
  for (const Overlapped& c : cases) {
    DYNAMIC_SECTION(c.name) {
      TrainingShape whole = whole_step();
      c.change(whole);
      whole.groups.clear();
      const LayoutCurve bulk = train_on(whole, c.layout, 4);
      whole.model_options.overlap = {Overlap::blocks, Overlap::blocks, Overlap::blocks, Overlap::blocks};
      const LayoutCurve blocks = train_on(whole, c.layout, 4);
      require_same_bits(blocks, bulk);
      REQUIRE(blocks.weights == bulk.weights);
      for (size_t rank = 0; rank < blocks.measured.size(); ++rank) {
        CHECK(blocks.measured[rank].sent_bytes() == bulk.measured[rank].sent_bytes());
        CHECK(sent_totals(blocks.planned[rank]) == sent_totals(blocks.measured[rank]));
        CHECK(blocks.measured[rank].sum(Collective::send, "tp").calls > 0);
      }
      require_same_bits(train_slowly_on(whole, c.layout, 2), bulk);
    }
  }
}

TEST_CASE("all ranks skip the same spikes on every layout") {
  TrainingShape whole = whole_step();
  whole.spikes = {.window = 8, .sigma = 0.3};  // so few that ordinary steps are spikes
  const LayoutCurve single = train_on(whole, {}, 14);
  CHECK(std::ranges::count(single.why, kNotSkipped) < 14);
  CHECK(std::ranges::count(single.why, kNotSkipped) > 7);
  for (const Layout& layout :
       {Layout{.dp_shard = 3}, Layout{.tp = 4}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2},
        Layout{.dp_replicate = 2, .dp_shard = 2}, Layout{.micro_batches = 4, .pp = 2}}) {
    const LayoutCurve curve = train_on(whole, layout, 14);
    CHECK(curve.why == single.why);
    require_near(curve, single, 1e-5);
  }
}

TEST_CASE("Muon trains on every layout as on one process") {
  TrainingShape whole = whole_step();
  const std::vector<ParameterSpec> specs = llama_parameters(whole.model).specs;
  give_matrices_to_muon(whole);
  whole.muon.precision = DType::f32;
  const LayoutCurve single = train_on(whole, {}, 8), adamw = train_on(whole_step(), {}, 8);
  CHECK(single.loss[0] == adamw.loss[0]);
  CHECK(single.loss.back() < 0.95 * single.loss.front());
  CHECK(single.loss.back() != adamw.loss.back());
  const std::vector<Case> cases = {
      {"FSDP 3: uneven shards", {.dp_shard = 3}},
      {"HSDP 2x2, accumulation", {.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2}},
      {"DDP 2", {.dp_replicate = 2}},
      {"TP 4: key/value heads are shared by two ranks", {.tp = 4}},
      {"FSDP 2 x TP 2", {.dp_shard = 2, .tp = 2}},
      {"HSDP 2x2 x TP 2", {.dp_replicate = 2, .dp_shard = 2, .tp = 2}},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    const LayoutCurve curve = train_on(whole, c.layout, 8);
    require_near(curve, single, 1e-5);
    require_same_bits(train_slowly_on(whole, c.layout, 3), curve);
    for (size_t r = 0; r < curve.planned.size(); ++r)
      CHECK(curve.measured[r].sent_bytes() == curve.planned[r].sent_bytes());
  }
  // A moment less, of 4 bytes, for every element of the matrices.
  whole.muon.precision = DType::bf16;
  auto bytes_of = [](const MemoryPlan& plan, MemoryCategory category) {
    int64_t sum = 0;
    for (const PlannedAllocation& a : plan.persistent) sum += a.category == category ? a.bytes : 0;
    return sum;
  };
  int64_t elements = 0;
  for (const ParameterSpec& spec : specs) elements += spec.role == ParameterRole::linear ? spec.numel() : 0;
  CHECK(bytes_of(adamw.memory[0], MemoryCategory::optimizer) -
            bytes_of(single.memory[0], MemoryCategory::optimizer) ==
        4 * elements);
  const Layout two{.dp_shard = 2};
  int64_t more = 0;
  const LayoutCurve with = train_on(whole, two, 1), without = train_on(whole_step(), two, 1);
  for (size_t r = 0; r < 2; ++r) more += with.planned[r].sent_bytes() - without.planned[r].sent_bytes();
  CHECK(more > 0);
  CHECK(more < 2 * elements * 2);  // both ways in bf16, without what an owner holds itself
}

TEST_CASE("every kind of model trains on every kind of layout") {
  const std::vector<std::pair<const char*, void (*)(LlamaConfig&)>> models = {
      {"tied embeddings", [](LlamaConfig& m) { m.tied_embeddings = true; }},
      {"QKV bias", [](LlamaConfig& m) { m.qkv_bias = true; }},
      {"QK norm, one key/value head", [](LlamaConfig& m) { m.qk_norm = true, m.kv_heads = 1; }},
  };
  const std::vector<Case> cases = {
      {"FSDP 3", {.dp_shard = 3}},
      {"TP 4", {.tp = 4}},
      {"FSDP 2 x TP 2, accumulation", {.dp_shard = 2, .tp = 2, .micro_batches = 2}},
  };
  for (const auto& [name, change] : models) {
    const TrainingShape whole = with_model(change);
    const LayoutCurve single = train_on(whole, {}, kSteps);
    for (const Case& c : cases) {
      DYNAMIC_SECTION(name << " on " << c.name) { check_layout(whole, single, c.layout); }
    }
  }
}

TEST_CASE("more shards than rows leave ranks with nothing, and nothing is lost") {
  TrainingShape whole = with_model([](LlamaConfig& m) { m.qk_norm = true, m.head_dim = 8, m.layers = 1; });
  const LayoutCurve single = train_on(whole, {}, kSteps);
  check_layout(whole, single, {.dp_shard = 6});  // norms of 8 elements: two for each of four ranks
}

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
  SECTION("never resharded") {
    whole.parameters.reshard = FsdpOptions::Reshard::never;
    require_same_bits(train_on(whole, layout, kSteps), usual);
  }
  SECTION("always resharded") {
    whole.parameters.reshard = FsdpOptions::Reshard::always;
    require_same_bits(train_on(whole, layout, kSteps), usual);
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

TEST_CASE("what is recomputed changes no bit on any layout") {
  TrainingShape whole = whole_step();
  for (const Layout& layout : {Layout{.dp_shard = 2}, Layout{.dp_shard = 2, .tp = 2}}) {
    whole.model_options.recompute = {};
    const LayoutCurve usual = train_on(whole, layout, 4);
    for (Recompute mode : {Recompute::elementwise, Recompute::block}) {
      whole.model_options.recompute.assign(2, mode);
      require_same_bits(train_on(whole, layout, 4), usual);
    }
    whole.model_options.recompute = {Recompute::nothing, Recompute::block};
    require_same_bits(train_on(whole, layout, 4), usual);
  }
}

TEST_CASE("logits that are gathered give the loss of those that are not") {
  TrainingShape whole = whole_step();
  const LayoutCurve single = train_on(whole, {}, kSteps);
  whole.model_options.loss_parallel = false;
  check_layout(whole, single, {.tp = 4});
  check_layout(whole, single, {.dp_shard = 2, .tp = 2, .micro_batches = 2});
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

TEST_CASE("layouts under the thread sanitizer", "[tsan]") {
  TrainingShape whole =
      with_model([](LlamaConfig& m) { m.tied_embeddings = true, m.vocab_size = 128, m.ffn_dim = 96; });
  whole.batch = 8;
  whole.sequence = whole.model_options.sequence = 8;
  whole.parameters.reduce_every_micro_batch = false;
  const LayoutCurve single = train_on(whole, {}, 3);
  for (const Layout& layout :
       {Layout{.dp_shard = 3, .tp = 1}, Layout{.dp_replicate = 2, .dp_shard = 2, .micro_batches = 2},
        Layout{.dp_shard = 2, .tp = 2}, Layout{.tp = 4}}) {
    whole.batch = layout.dp_shard == 3 ? 6 : 8;
    require_near(train_on(whole, layout, 3), layout.dp_shard == 3 ? train_on(whole, {}, 3) : single, 1e-5);
  }
}
