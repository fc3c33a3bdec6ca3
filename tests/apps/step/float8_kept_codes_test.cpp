#include "apps/config/experiment.h"
#include "apps/report/float8_remarks.h"
#include "tests/support/catch.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/traffic_formula.h"

// Codes of weights that are gathered in bf16: kept through the step, or made again after every gather.

using namespace ottava;
using namespace ottava::test;

namespace {

TrainingShape step_with(const std::string& recipe, int tp, bool keeps) {
  TrainingShape whole = wide_float8_step();
  whole.groups.clear();
  whole = in_float8(whole, {.recipe_name = recipe, .amax_history_length = 4}, tp);
  whole.parameters.keeps_float8_codes = keeps;
  return whole;
}

/// Calls in which rank 0 of the layout quantizes weights, in one step.
int64_t quantizations(const TrainingShape& whole, const Layout& layout) {
  return weight_quantizing(record_first_rank(shape_on(whole, layout), {DeviceType::cpu, 0}, layout.mesh()))
      .calls;
}

void require_same_curve(const LayoutCurve& a, const LayoutCurve& b) {
  REQUIRE(a.loss == b.loss);
  REQUIRE(a.grad_norm == b.grad_norm);
  REQUIRE((a.weights == b.weights));
}

}  // namespace

TEST_CASE("kept codes change no bit, and what is sent is what the formula says") {
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{.dp_shard = 2, .micro_batches = 2}, Layout{.dp_shard = 2, .tp = 2}}) {
      for (Recompute recompute : {Recompute::nothing, Recompute::all_but_attention, Recompute::block}) {
        DYNAMIC_SECTION(recipe << ", tp " << layout.tp << ", recomputation " << static_cast<int>(recompute)) {
          TrainingShape made = step_with(recipe, layout.tp, false), kept = step_with(recipe, layout.tp, true);
          made.model_options.recompute.assign(2, recompute);
          kept.model_options.recompute.assign(2, recompute);
          const LayoutCurve once = train_on(kept, layout, 3);
          require_same_curve(once, train_on(made, layout, 3));
          require_traffic_of_formula(kept, layout, once);
        }
      }
    }
  }
}

TEST_CASE("weights are quantized once per optimizer step where codes are kept, else after every gather") {
  const int64_t weights = 2 * 4;  // four layers of two blocks
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    const TrainingShape kept = step_with(recipe, 1, true), made = step_with(recipe, 1, false);
    const Float8WeightSpec& first = kept.parameters.float8.specs[0];
    // Two uses with different scales are two quantizations.
    const int64_t uses = float8_weight_travel(first, 256, 2).shares_codes ? 1 : 2;
    for (int64_t micro_batches : {1, 2, 4}) {
      const Layout layout{.dp_shard = 2, .micro_batches = micro_batches};
      CHECK(quantizations(kept, layout) == weights * uses);
      // The last block, too, is let go between its forward and its backward.
      CHECK(quantizations(made, layout) == weights * 2 * micro_batches);
    }
    TrainingShape recomputed = made;
    recomputed.model_options.recompute.assign(2, Recompute::block);
    // Forward again, but for w2, whose output is not needed.
    CHECK(quantizations(recomputed, {.dp_shard = 2}) == weights * (1 + uses) - (uses == 2 ? 2 : 0));
    recomputed.parameters.keeps_float8_codes = true;
    CHECK(quantizations(recomputed, {.dp_shard = 2}) == weights * uses);
    TrainingShape never = kept;  // whole weights stay: nothing to keep beside them
    never.parameters.reshard = FsdpOptions::Reshard::never;
    CHECK(quantizations(never, {.dp_shard = 2, .micro_batches = 4}) == weights * uses);
  }
}

TEST_CASE("kept codes of padded, split and partly exempt layers change no bit") {
  Float8Config padded, split;
  padded.policy = {{"output", "tensorwise"}};
  padded.pad_vocabulary = true;
  split.filter_fqns = {"wk"};
  for (const Float8Config& config : {padded, split}) {
    TrainingShape whole = wide_float8_step();
    whole.groups.clear();
    whole.model.vocab_size = 296;
    whole = in_float8(whole, config);
    const Layout layout{.dp_shard = 2, .micro_batches = 2};
    const LayoutCurve made = train_on(whole, layout, 3);
    whole.parameters.keeps_float8_codes = true;
    const LayoutCurve kept = train_on(whole, layout, 3);
    require_same_curve(kept, made);
    require_traffic_of_formula(whole, layout, kept);
  }
}

TEST_CASE("a step after a validation makes its own codes") {
  TrainingShape whole = step_with("tensorwise", 1, true);
  whole.validation_batch = 2;
  whole.validation_sequence = whole.sequence;
  const StepPlan plan =
      record_first_rank(shape_on(whole, {.dp_shard = 2}), {DeviceType::cpu, 0}, Layout{.dp_shard = 2}.mesh());
  // Recorded once each: replaying a step after a validation asks for what was recorded.
  REQUIRE(plan.memory.phases.size() == 2);
  CHECK(weight_quantizing(plan).calls == 8);
}
