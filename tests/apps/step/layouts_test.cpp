#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/apps/step/whole_step.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/traffic_formula.h"

// Every layout trains as one process does: FP32, the same seed, no checkpoint to start from. Sums are made in
// another order, nothing else differs.

using namespace ottava;
using namespace ottava::test;

TEST_CASE("a run learns, and its curve is not flat") {
  const LayoutCurve single = train_on(whole_step(), {}, kSteps);
  CHECK(single.loss.back() < 0.9 * single.loss.front());
  require_same_bits(train_on(whole_step(), {}, 3), single);
}

// Else no layout would show that it clips by the norm over all ranks.
TEST_CASE("the curve shows whether gradients are clipped") {
  TrainingShape whole = whole_step();
  const LayoutCurve clipped = train_on(whole, {}, kSteps);
  for (const double norm : clipped.grad_norm) CHECK(norm > whole.max_norm);
  whole.max_norm = 0;
  const LayoutCurve free = train_on(whole, {}, kSteps);
  double distance = 0;
  for (size_t step = 0; step < free.loss.size(); ++step)
    distance = std::max(distance, std::abs(clipped.loss[step] / free.loss[step] - 1));
  CHECK(distance > 10 * kTolerance);
}

// Else no layout would show that its queries saw the wrong keys.
TEST_CASE("the curve shows to which tokens attention attends") {
  const LayoutCurve far = train_on(whole_step(), {}, 3);
  const LayoutCurve near = train_on(with_model([](LlamaConfig& m) { m.rope_theta = 100000; }), {}, 3);
  double distance = 0;
  for (size_t step = 0; step < far.loss.size(); ++step)
    distance = std::max(distance, std::abs(near.grad_norm[step] / far.grad_norm[step] - 1));
  CHECK(distance > 10 * kTolerance);
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

namespace {

/// Masters of the first block's matrices on each tensor parallel rank, after steps with bf16 moments that
/// began with the same numbers in the slices of all ranks.
struct RoundedSlices {
  std::vector<std::vector<float>> wqkv, w13, w2;
};
RoundedSlices train_equal_slices(int tp) {
  TrainingShape shape = whole_step();
  shape.parameters.optimizer_state = DType::bf16;
  const LlamaBlockParameters block = llama_parameters(shape.model).blocks[0];
  const auto ranks = static_cast<size_t>(tp);
  const std::vector<std::vector<float>> none(ranks);
  RoundedSlices out{none, none, none};
  run_thread_ranks({.ranks = tp}, [&](Communicator& world) {
    EngineRun run(shape, std::make_unique<RankGroups>(groups_over(world, Layout{.tp = tp}.mesh())),
                  {DeviceType::cpu, 0});
    run->parameters().initialise(7);
    for (int p : {block.w13, block.w2}) {
      const Tensor& master = run->parameters().shard(p).master;
      for (int64_t i = 0; i < master.numel(); ++i)
        master.as<float>()[i] = 0.02f * std::sin(static_cast<float>(i + p));
    }
    run->parameters().refresh_compute_copies();
    const int64_t tokens = shape.batch * shape.sequence;
    for (int step = 1; step <= 5; ++step) {
      const std::vector<int32_t> inputs = random_tokens(tokens, shape.model.vocab_size, 1),
                                 targets = random_tokens(tokens, shape.model.vocab_size, 2);
      run->train_step({.inputs = inputs, .targets = targets},
                      {.learning_rate = 2e-3, .optimizer_step = step, .valid_tokens = tokens});
    }
    const auto values = [&](int p) { return run.values(run->parameters().shard(p).master); };
    const auto rank = static_cast<size_t>(world.rank());
    out.wqkv[rank] = values(block.wqkv), out.w13[rank] = values(block.w13), out.w2[rank] = values(block.w2);
  });
  return out;
}

double share_of_equal(const std::vector<float>& a, const std::vector<float>& b) {
  double equal = 0;
  for (size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
  return equal / static_cast<double>(a.size());
}

}  // namespace

TEST_CASE(
    "bf16 moments are rounded by other numbers on each tensor parallel rank, but for heads that ranks "
    "share") {
  const RoundedSlices two = train_equal_slices(2);
  CHECK(share_of_equal(two.w13[0], two.w13[1]) < 0.1);
  CHECK(share_of_equal(two.w2[0], two.w2[1]) < 0.1);
  const RoundedSlices four = train_equal_slices(4);
  const size_t query = 16 * 64;  // one head; those of keys and values are two ranks'
  for (size_t rank : {0, 2}) {
    const auto shared = [&](size_t r) {
      return std::vector<float>(four.wqkv[r].begin() + query, four.wqkv[r].end());
    };
    CHECK(shared(rank) == shared(rank + 1));
    CHECK(share_of_equal(four.w13[rank], four.w13[rank + 1]) < 0.1);
  }
  CHECK(share_of_equal(four.wqkv[0], four.wqkv[2]) < 0.1);
}

TEST_CASE("all ranks skip the same spikes on every layout") {
  TrainingShape whole = whole_step();
  whole.spikes = {.window = 8, .sigma = 2.5};  // so few that ordinary steps are spikes
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

TEST_CASE("whether the loss is a spike is decided by the tokens of all ranks") {
  TrainingShape whole = whole_step();
  for (auto& group : whole.groups) group.lr_factor = 0;  // the loss goes up and down with the tokens alone
  whole.spikes = {.window = 8, .sigma = 0.5};
  const LayoutCurve single = train_on(whole, {}, 14);
  CHECK(std::ranges::count(single.why, kLossSpike) > 1);
  for (const Layout& layout : {Layout{.dp_shard = 4}, Layout{.dp_replicate = 2, .micro_batches = 3},
                               Layout{.dp_shard = 2, .tp = 2}, Layout{.micro_batches = 4, .pp = 2}})
    CHECK(train_on(whole, layout, 14).why == single.why);
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

TEST_CASE("logits that are gathered give the loss of those that are not") {
  TrainingShape whole = whole_step();
  const LayoutCurve single = train_on(whole, {}, kSteps);
  whole.model_options.loss_parallel = false;
  check_layout(whole, single, {.tp = 4});
  check_layout(whole, single, {.dp_shard = 2, .tp = 2, .micro_batches = 2});
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
