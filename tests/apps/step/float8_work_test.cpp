#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/tiny_training.h"

// What one rank's step does in FP8: its passes over memory, what it keeps, and that its products are those of
// the policy.

using namespace ottava;
using namespace ottava::test;

// An amax is measured where the value is written, and that changes nothing: it is the one that a pass of its
// own finds.
TEST_CASE("only what attention leaves is read once more for its amax") {
  auto passes = [](TrainingShape shape) {
    std::map<std::string, int64_t> calls;
    const EngineRun run(shape);
    for (const auto& cost : run.plan().costs) {
      if (cost.op == "amax") calls[cost.label] += cost.calls;
    }
    std::string text;
    for (const auto& [label, count] : calls) text += fmt::format("{} {};", label, count);
    return text;
  };
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    const TrainingShape shape = in_float8(float8_step(), {.recipe_name = recipe});
    const bool per_tensor =
        shape.float8_policy.decisions[0].recipe->forward.a.granularity == fp8::Granularity::tensor;
    CHECK(passes(shape) == (per_tensor ? "attention.wo 2;" : ""));
  }
  TrainingShape normed = float8_step();
  normed.model.qk_norm = true;  // its backward comes after RoPE's, and measures in its stead
  normed.groups.clear();
  CHECK(passes(in_float8(normed, {})) == "attention.wo 2;");
}

// The test above shows that the codes are the same: without recomputation they are made from values that were
// written.
TEST_CASE("what nothing but an FP8 product reads is written only in FP8") {
  auto calls = [](const std::string& recipe, Recompute recompute, const Float8Config& more = {}) {
    Float8Config config = more;
    config.recipe_name = recipe;
    TrainingShape shape = in_float8(float8_step(), config);
    shape.model_options.recompute.assign(2, recompute);
    const EngineRun run(shape);
    std::map<std::string, int64_t> out;
    for (const auto& cost : run.plan().costs) out[cost.op] += cost.calls;
    return std::vector<int64_t>{out["rms_norm_quantize"], out["swiglu_quantize"], out["swiglu_forward"]};
  };
  using Calls = std::vector<int64_t>;
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    // Of delayed's values codes are written beside the first writing: its scales are known before.
    const bool is_delayed = recipe == "delayed",
               writes_codes = is_delayed || recipe.starts_with("rowwise") || recipe == "blockwise";
    CHECK(calls(recipe, Recompute::nothing) == (is_delayed ? Calls{4, 2, 0} : Calls{0, 0, 2}));
    CHECK(calls(recipe, Recompute::elementwise) == (writes_codes ? Calls{4, 2, 0} : Calls{0, 0, 2}));
    for (const Recompute again : {Recompute::all_but_attention, Recompute::block})
      CHECK(calls(recipe, again) == (writes_codes ? Calls{8, 2, 0} : Calls{0, 0, 2}));
  }
  CHECK(calls("rowwise", Recompute::block, {.filter_fqns = {"wk"}}) ==
        Calls{4, 2, 0});  // a split fusion reads it in pieces
}

// Tests of core/ops and of Linear show that the codes are the same, and what follows from them.
TEST_CASE("a gradient that rows scale leaves its producer in FP8, and no pass makes that form again") {
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    const bool by_rows = recipe.starts_with("rowwise") || recipe == "blockwise";
    const TrainingShape shape = in_float8(float8_step(), {.recipe_name = recipe});
    const EngineRun run(shape);
    std::map<std::string, int64_t> calls;
    std::map<std::string, double> quantized;
    for (const auto& cost : run.plan().costs) {
      calls[cost.op] += cost.calls;
      if (cost.op == "quantize") quantized[cost.label] += cost.bytes;
    }
    // The first block's first norm gives the embedding its gradient; RoPE's goes to wqkv.
    const bool writes_codes = by_rows || recipe == "delayed";
    CHECK(calls["rms_norm_backward_quantize"] == (writes_codes ? 4 : 0));
    CHECK(calls["rms_norm_backward"] == (writes_codes ? 1 : 5));
    CHECK(calls["swiglu_backward_quantize"] == (writes_codes ? 2 : 0));
    CHECK(calls["swiglu_backward"] == (writes_codes ? 0 : 2));
    if (!by_rows) continue;
    // What is left of each block's: x, and dy transposed. A byte per element is written, two are read, twice
    // where rows and columns have scales of their own.
    const fp8::Recipe& made = *shape.float8_policy.decisions[0].recipe;
    const auto scales = [&](int64_t rows, int64_t cols) {
      return 4 * fp8::scale_shape(made.forward.a.granularity, rows, cols).numel();
    };
    const auto bytes = [&](int64_t out, int64_t in) {
      const int64_t tokens = shape.batch * shape.sequence, x = tokens * in, dy = tokens * out;
      if (!made.weight_gradient.is_fp8) return 2 * (3 * x + scales(tokens, in));
      const int64_t reads = made.forward.a.granularity == fp8::Granularity::row ? 4 : 2;
      return 2 * ((reads + 2) * x + scales(tokens, in) + scales(in, tokens) + 3 * dy + scales(out, tokens));
    };
    CHECK(quantized["feed_forward.w13"] == bytes(2 * shape.model.ffn_dim, shape.model.dim));
    CHECK(quantized["feed_forward.w2"] == bytes(shape.model.dim, shape.model.ffn_dim));
    CHECK(quantized["attention.wo"] == bytes(shape.model.dim, shape.model.dim));
  }
}

TEST_CASE("FP8 keeps less for backward than bf16 does, and a recomputed block nothing in FP8") {
  auto saved_bytes = [](TrainingShape shape, std::optional<Recompute> recompute) {
    shape.batch = 1;
    if (recompute) shape.model_options.recompute.assign(2, *recompute);
    for (const MemoryPlan::Row& row : EngineRun(shape).plan().memory.by_category()) {
      if (row.category == MemoryCategory::activations) return row.bytes;
    }
    FAIL("there are no activations");
    return int64_t{0};
  };
  TrainingShape bf16 = float8_step();
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    const TrainingShape shape = in_float8(float8_step(), {.recipe_name = recipe});
    const int64_t in_fp8 = saved_bytes(shape, {}), in_bf16 = saved_bytes(bf16, {});
    // Inputs of four layers; scales take some of it back, and what attention leaves is kept for its own
    // backward too.
    if (!recipe.ends_with("gw_hp")) CHECK(in_fp8 < in_bf16);
    CHECK(saved_bytes(shape, Recompute::block) <= saved_bytes(bf16, Recompute::block));
  }
}

// Counted by hand: forward, input gradient and weight gradient of a layer once per micro-batch; forward again
// where its block is recomputed, but w2's, whose result backward does not need; the output layer once per
// chunk of the loss.
TEST_CASE("a step runs the FP8 products that the policy has, as often as backward and chunks need them") {
  TrainingShape shape = in_float8(float8_step(), {.policy = {{.match = "output", .recipe = "tensorwise"}}});
  shape.batch = 1;
  shape.micro_batches = 2;
  shape.model_options.loss_chunk_rows = 16;  // of 32 tokens
  auto require_runs = [](const TrainingShape& s, int64_t forward) {
    EngineRun run(s);
    run->parameters().initialise(7);
    const std::vector<int32_t> tokens = random_tokens(64, 300, 1);
    run->train_step({.inputs = tokens, .targets = tokens, .document_start = {}, .positions = {}},
                    {.learning_rate = 1e-3, .valid_tokens = 64});
    const Float8State& state = *run->float8();
    REQUIRE(state.options().products.size() == 2 * 4 + 1);
    for (size_t p = 0; p < state.options().products.size(); ++p) {
      const std::string& name = state.options().products[p];
      INFO(name);
      std::array<int64_t, 3> products = {forward, 2, 2};
      if (name.ends_with(".w2")) products = {2, 2, 2};
      if (name == "output") products = {4, 4, 4};
      CHECK((state.runs(static_cast<int64_t>(p)).products == products));
    }
  };
  require_runs(shape, 2);
  shape.model_options.recompute.assign(2, Recompute::elementwise);
  require_runs(shape, 2);
  for (const Recompute again : {Recompute::all_but_attention, Recompute::block}) {
    shape.model_options.recompute.assign(2, again);
    require_runs(shape, 4);
  }
  CHECK(shape.float8_policy.fp8_products() == 9 * 3);
}

TEST_CASE("a step whose FP8 products are not those of the policy is refused, by layer and with the counts") {
  TrainingShape shape = in_float8(float8_step(), {});
  shape.batch = 1;
  auto policy = [](const Float8Config& config) { return in_float8(float8_step(), config).float8_policy; };
  auto message = [&](const fp8::Policy& says) {
    TrainingShape s = shape;
    s.float8_policy = says;
    try {
      EngineRun run(s);
    } catch (const NumericsError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(message(shape.float8_policy).empty());
  const std::string tensorwise = " ran tensorwise 1 forward, 1 input gradient, 1 weight gradient instead of ",
                    none = " ran high precision 0 forward, 0 input gradient, 0 weight gradient instead of ";
  auto begin = [](int products) {
    return fmt::format("[fp8] the step's {} FP8 products are not those of the policy: ", products);
  };
  const std::string end = ": this is a defect, please report it with the configuration";
  CHECK(message(policy({.policy = {{.match = "layers.1.feed_forward.w2", .recipe = "bf16"}}})) ==
        begin(24) + "layers.1.feed_forward.w2" + tensorwise + "high precision" + end);
  CHECK(
      message(policy({.policy = {{.match = "layers.0.attention.wo", .recipe = "tensorwise_with_gw_hp"}}})) ==
      begin(24) + "layers.0.attention.wo" + tensorwise + "tensorwise_with_gw_hp" + end);
  // The number of products is right, but they are not those of the table.
  CHECK(message(policy({.policy = {{.match = "layers.0.attention.wo", .recipe = "rowwise"}}})) ==
        begin(24) + "layers.0.attention.wo" + tensorwise + "rowwise" + end);
  CHECK(message(policy({.policy = {{.match = "output", .recipe = "tensorwise"}}})) ==
        begin(24) + "output" + none + "tensorwise" + end);
  CHECK_THAT(message(policy({.recipe_name = "rowwise"})), Catch::Contains("; and 4 more layers"));
  // A model that does less than its table says: one of its layers runs in bf16.
  const TrainingShape less =
      in_float8(float8_step(), {.policy = {{.match = "layers.1.attention.wqkv", .recipe = "bf16"}}});
  shape.float8 = less.float8, shape.parameters.float8 = less.parameters.float8;
  CHECK(message(in_float8(float8_step(), {}).float8_policy) ==
        begin(21) + "layers.1.attention.wqkv" + none + "tensorwise" + end);
}
