#include <string>

#include "models/llama/llama_parameters.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/traffic_formula.h"

// Ranks that share sequences train as one process does. Attention sums what a query sees in the order of one
// process; gradients of keys and values, and those of parameters, are added in another.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kSteps = 6;

// Sequences of 48 tokens: on 4 ranks 8 chunks of 6. Three KV heads make groups of one, four one of each.
TrainingShape whole_step(bool documents, int64_t kv_heads = 2) {
  const LlamaConfig model{.dim = 64,
                          .layers = 2,
                          .heads = 2 * kv_heads,
                          .kv_heads = kv_heads,
                          .head_dim = 16,
                          .ffn_dim = 160,
                          .vocab_size = 320};
  TrainingShape shape = tiny_shape(model, 8, 48);
  shape.model_options.loss_chunk_rows = 40;
  shape.block_causal = documents;
  shape.max_norm = 0.2f;
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

void check_layout(const TrainingShape& whole, const LayoutCurve& single, const Layout& layout,
                  double tolerance = 1e-5) {
  const LayoutCurve curve = train_on(whole, layout, kSteps);
  for (size_t step = 0; step < curve.loss.size(); ++step) {
    INFO("step " << step);
    REQUIRE(curve.loss[step] == Approx(single.loss[step]).epsilon(tolerance));
    REQUIRE(curve.grad_norm[step] == Approx(single.grad_norm[step]).epsilon(tolerance));
  }
  if (layout.pp == 1) require_traffic_of_formula(whole, layout, curve);
  const LayoutCurve again = train_on(whole, layout, 2);
  for (size_t step = 0; step < again.loss.size(); ++step) REQUIRE(again.loss[step] == curve.loss[step]);
}

struct Case {
  const char* name;
  Layout layout;
};
const std::vector<Case> kCases = {
    {"CP 2", {.cp = 2}},
    {"CP 4", {.cp = 4}},
    {"CP 3: chunks of 8 tokens", {.cp = 3}},
    {"FSDP 2 x CP 2", {.dp_shard = 2, .cp = 2}},
    {"CP 2 x TP 2", {.cp = 2, .tp = 2}},
    {"FSDP 2 x CP 2 x TP 2", {.dp_shard = 2, .cp = 2, .tp = 2}},
    {"HSDP 2 x 2 x CP 2", {.dp_replicate = 2, .dp_shard = 2, .cp = 2}},
    {"DDP 2 x CP 2, accumulation", {.dp_replicate = 2, .cp = 2, .micro_batches = 2}},
    {"CP 2 x TP 4: shared key/value heads", {.cp = 2, .tp = 4}},
    {"CP 4 x TP 2", {.cp = 4, .tp = 2}},
    {"FSDP 2 x CP 4", {.dp_shard = 2, .cp = 4}},
    {"PP 2 x CP 2", {.cp = 2, .micro_batches = 4, .pp = 2}},
};

}  // namespace

TEST_CASE("context parallel layouts train as one process does") {
  const bool documents = GENERATE(false, true);
  const TrainingShape whole = whole_step(documents);
  const LayoutCurve single = train_on(whole, {}, kSteps);
  CHECK(single.loss.back() < single.loss.front());
  for (const Case& c : kCases) {
    DYNAMIC_SECTION(c.name << (documents ? ", documents" : "")) { check_layout(whole, single, c.layout); }
  }
}

TEST_CASE("context parallel layouts that recompute train as one process does") {
  TrainingShape whole = whole_step(true);
  const LayoutCurve single = train_on(whole, {}, kSteps);
  for (const Recompute first : {Recompute::block, Recompute::all_but_attention}) {
    whole.model_options.recompute = {first, Recompute::elementwise};
    for (const Case& c : kCases) {
      DYNAMIC_SECTION(c.name << ", mode " << static_cast<int>(first)) {
        check_layout(whole, single, c.layout);
      }
    }
  }
}

TEST_CASE("context parallel with groups of heads, with QK norm and with recomputation") {
  for (const int64_t kv_heads : {1, 3, 4, 6}) {
    TrainingShape whole = whole_step(true, kv_heads);
    whole.model.qk_norm = true;
    whole.groups.assign(llama_parameters(whole.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
    const LayoutCurve single = train_on(whole, {}, kSteps);
    DYNAMIC_SECTION(kv_heads << " key/value heads") { check_layout(whole, single, {.cp = 2}); }
    whole.model_options.recompute = {Recompute::block, Recompute::elementwise};
    DYNAMIC_SECTION(kv_heads << " key/value heads, recomputed") { check_layout(whole, single, {.cp = 2}); }
  }
}

TEST_CASE("context parallel in bf16 stays near one process") {
  TrainingShape whole = whole_step(true);
  whole.parameters.compute = DType::bf16;
  const LayoutCurve single = train_on(whole, {}, kSteps);
  check_layout(whole, single, {.cp = 2}, 5e-3);
  check_layout(whole, single, {.cp = 2, .tp = 2}, 5e-3);
}

// A rank's FP8 scales of a tensor, and those of columns over tokens, are of its tokens only, as with more
// data ranks: there is a recipe's rounding between the two. Where only rows and blocks of them have scales,
// the first forward is that of one rank but for the order in which losses are added.
TEST_CASE("context parallel in FP8 stays near one process in every recipe") {
  for (const std::string& recipe : all_recipes()) {
    const Float8Config config{.recipe_name = recipe,
                              .amax_history_length = 1,
                              .enable_fsdp_float8_all_gather = true,
                              .enable_tp_float8_all_gather = true};
    const LayoutCurve single = train_on(in_float8(float8_step(), config), {}, 3);
    const bool by_rows = recipe != "tensorwise" && recipe != "tensorwise_with_gw_hp" && recipe != "delayed";
    for (const Layout& layout : {Layout{.cp = 2}, Layout{.dp_shard = 2, .cp = 2, .tp = 2}}) {
      INFO(recipe << " on FSDP " << layout.dp_shard << " x CP 2 x TP " << layout.tp);
      const LayoutCurve shared = train_on(in_float8(float8_step(), config, layout.tp), layout, 3);
      for (size_t step = 0; step < shared.loss.size(); ++step) {
        CHECK(shared.loss[step] == Approx(single.loss[step]).epsilon(2e-3));
        CHECK(shared.grad_norm[step] == Approx(single.grad_norm[step]).epsilon(2e-2));
      }
      if (by_rows && layout.tp == 1) CHECK(shared.loss[0] == Approx(single.loss[0]).epsilon(1e-6));
    }
  }
}

TEST_CASE("what context parallel recomputes changes no bit, in FP8 neither") {
  const Layout layout{.cp = 2, .tp = 2};
  std::vector<TrainingShape> steps{whole_step(true)};
  for (const char* recipe : {"tensorwise", "rowwise"})
    steps.push_back(in_float8(float8_step(), {.recipe_name = recipe}, layout.tp));
  for (TrainingShape& whole : steps) {
    const LayoutCurve kept = train_on(whole, layout, 3);
    for (const Recompute recompute :
         {Recompute::elementwise, Recompute::all_but_attention, Recompute::block}) {
      whole.model_options.recompute.assign(2, recompute);
      const LayoutCurve again = train_on(whole, layout, 3);
      CHECK(again.loss == kept.loss);
      CHECK(again.grad_norm == kept.grad_norm);
      CHECK(again.weights == kept.weights);
    }
  }
}

TEST_CASE("what a rank holds of activations falls with the ranks that share its sequences") {
  const TrainingShape whole = whole_step(false);
  const auto activations = [&](int cp) {
    for (const MemoryPlan::Row& row : train_on(whole, {.cp = cp}, 1).memory[0].by_category())
      if (row.category == MemoryCategory::activations) return row.bytes;
    FAIL("there are no activations");
    return int64_t{0};
  };
  const int64_t one = activations(1);
  CHECK(activations(2) <= one * 11 / 20);
  CHECK(activations(4) <= one * 6 / 20);
}

TEST_CASE("each sequence's loss is the sum of what the ranks that share it have", "[tsan]") {
  TrainingShape whole = whole_step(true);
  whole.sequence_losses = true;
  const LayoutCurve single = train_on(whole, {}, 1);
  double all = 0;
  for (const float loss : single.sequence_losses[0]) all += loss;
  const int64_t tokens = whole.batch * whole.sequence, ignored = (tokens + 12) / 13;  // layout_run.cpp
  CHECK(all == Approx(single.loss[0] * static_cast<double>(tokens - ignored)).epsilon(1e-5));
  std::vector<float> sums(static_cast<size_t>(whole.batch));
  const LayoutCurve shared = train_on(whole, {.cp = 4}, 1);
  for (const std::vector<float>& losses : shared.sequence_losses) {
    REQUIRE(losses.size() == sums.size());
    for (size_t i = 0; i < losses.size(); ++i) sums[i] += losses[i];
  }
  for (size_t i = 0; i < sums.size(); ++i)
    CHECK(sums[i] == Approx(single.sequence_losses[0][i]).epsilon(1e-5));
}
