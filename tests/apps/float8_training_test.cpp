#include <cmath>

#include "core/ops/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"

// Whole steps in FP8, ranks as threads: what must not change a bit, what may change little, and what is skipped or refused.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kSteps = 3;

LayoutCurve train(const Float8Config& config, const Layout& layout, int steps = kSteps, void (*change)(TrainingShape&) = nullptr) {
  TrainingShape whole = float8_step();
  if (change) change(whole);
  return train_on(in_float8(whole, config, layout.tp), layout, steps);
}

void require_same_bits(const LayoutCurve& got, const LayoutCurve& want) {
  REQUIRE(got.loss == want.loss);
  REQUIRE(got.grad_norm == want.grad_norm);
}

int64_t products(const Float8Config& config, int tp = 1) { return in_float8(float8_step(), config, tp).float8_policy.fp8_products(); }

}  // namespace

TEST_CASE("every recipe trains, and no two give the same numbers") {
  std::vector<LayoutCurve> curves;
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    CHECK(products({.recipe_name = recipe}) == (recipe.ends_with("gw_hp") ? 2 : 3) * 8);
    curves.push_back(train({.recipe_name = recipe}, {}));
    CHECK(curves.back().loss.back() < curves.back().loss.front());
    require_same_bits(train({.recipe_name = recipe}, {}), curves.back());
    for (size_t i = 0; i + 1 < curves.size(); ++i) {
      // The history of `delayed` is still filling: until then it is tensorwise. Scales that are powers of two lose the same
      // bits whatever shares them, as long as nothing underflows.
      const std::string other = all_recipes()[i];
      const bool is_same = recipe == "delayed" && other == "tensorwise", may_be = recipe == "mxfp8" && other == "blockwise";
      INFO("and " << other);
      CHECK((may_be || (curves[i].grad_norm == curves.back().grad_norm) == is_same));
    }
  }
}

// torchtitan's flag was once ignored without a word: the traffic test counts the bytes. Here: they are the right ones.
TEST_CASE("weights gathered as FP8 bytes give the losses of those gathered in bf16, bit for bit") {
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{.dp_shard = 4}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2}, Layout{.dp_replicate = 2, .dp_shard = 2}}) {
      DYNAMIC_SECTION(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp << " x " << layout.dp_replicate) {
        require_same_bits(train({.recipe_name = recipe, .enable_fsdp_float8_all_gather = true}, layout), train({.recipe_name = recipe}, layout));
      }
    }
  }
}

TEST_CASE("activations gathered as FP8 bytes give the losses of those gathered in bf16, bit for bit") {
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{.tp = 2}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2}}) {
      DYNAMIC_SECTION(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp) {
        require_same_bits(train({.recipe_name = recipe, .enable_tp_float8_all_gather = true}, layout), train({.recipe_name = recipe}, layout));
      }
    }
  }
}

TEST_CASE("what is recomputed changes no bit in any recipe") {
  const std::vector<std::pair<const char*, void (*)(TrainingShape&)>> modes = {
      {"elementwise", [](TrainingShape& s) { s.model_options.recompute.assign(2, Recompute::elementwise); }},
      {"every second block", [](TrainingShape& s) { s.model_options.recompute = {Recompute::nothing, Recompute::block}; }},
      {"full", [](TrainingShape& s) { s.model_options.recompute.assign(2, Recompute::block); }},
  };
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2}}) {
      const bool gathers = layout.tp > 1;
      const Float8Config config{.recipe_name = recipe, .enable_fsdp_float8_all_gather = gathers, .enable_tp_float8_all_gather = gathers};
      const LayoutCurve usual = train(config, layout);
      for (const auto& [name, change] : modes) {
        DYNAMIC_SECTION(recipe << ", " << name << ", TP " << layout.tp) { require_same_bits(train(config, layout, kSteps, change), usual); }
      }
    }
  }
}
