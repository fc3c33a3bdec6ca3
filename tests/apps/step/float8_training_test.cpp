#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_training.h"

// Whole steps in FP8, ranks as threads: what must not change a bit, what may change little, and what is
// skipped or refused.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kSteps = 2;

LayoutCurve train(const Float8Config& config, const Layout& layout, int steps = kSteps,
                  void (*change)(TrainingShape&) = nullptr) {
  TrainingShape whole = float8_step();
  if (change) change(whole);
  return train_on(in_float8(whole, config, layout.tp), layout, steps);
}

/// Makes the history of recipe delayed full after the first step: from then on scales come from earlier
/// steps.
Float8Config with_history(Float8Config config) {
  config.amax_history_length = 1;
  return config;
}
int steps_of(const std::string& recipe) { return recipe == "delayed" ? 3 : kSteps; }

void require_same_bits(const LayoutCurve& got, const LayoutCurve& want) {
  REQUIRE(got.loss == want.loss);
  REQUIRE(got.grad_norm == want.grad_norm);
}

int64_t products(const Float8Config& config, int tp = 1) {
  return in_float8(float8_step(), config, tp).float8_policy.fp8_products();
}

/// All three products in FP8 with scales that are powers of two.
bool is_power_of_two(const std::string& recipe) {
  return recipe == "rowwise" || recipe == "blockwise" || recipe == "mxfp8";
}

// With every recipe: `plain`, and the same with codes gathered.
template <class F>
void for_each_sharding(F&& check) {
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{.dp_shard = 4}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2},
                                 Layout{.dp_replicate = 2, .dp_shard = 2}}) {
      DYNAMIC_SECTION(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp << " x "
                             << layout.dp_replicate) {
        check(with_history({.recipe_name = recipe}),
              with_history({.recipe_name = recipe, .enable_fsdp_float8_all_gather = true}), layout,
              steps_of(recipe));
      }
    }
  }
}

}  // namespace

TEST_CASE("every recipe trains, and those that round differently give other numbers") {
  std::vector<LayoutCurve> curves;
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    CHECK(products({.recipe_name = recipe}) == (recipe.ends_with("gw_hp") ? 2 : 3) * 8);
    curves.push_back(train({.recipe_name = recipe}, {}, 3));
    CHECK(curves.back().loss.back() < curves.back().loss.front());
    require_same_bits(train({.recipe_name = recipe}, {}, 3), curves.back());
    for (size_t i = 0; i + 1 < curves.size(); ++i) {
      // The history of `delayed` is still filling: until then it is tensorwise. Scales that are powers of two
      // lose the same bits whatever shares them unless something underflows (a test of quantize shows when),
      // which depends on the last bits of products.
      const std::string other = all_recipes()[i];
      const bool is_same = recipe == "delayed" && other == "tensorwise",
                 may_be = is_power_of_two(recipe) && is_power_of_two(other);
      INFO("and " << other);
      if (!may_be) CHECK((curves[i].grad_norm == curves.back().grad_norm) == is_same);
    }
  }
}

// TorchTitan's flag was once ignored without a word. The traffic test counts the bytes; this one shows that
// they are the right ones.
TEST_CASE("weights gathered as FP8 codes give the losses of those gathered in bf16, bit for bit") {
  for_each_sharding(
      [](const Float8Config& plain, const Float8Config& codes, const Layout& layout, int steps) {
        require_same_bits(train(codes, layout, steps), train(plain, layout, steps));
      });
}

TEST_CASE("weights that Muon moves are gathered as FP8 codes with the bits of those gathered in bf16") {
  for_each_sharding(
      [](const Float8Config& plain, const Float8Config& codes, const Layout& layout, int steps) {
        const LayoutCurve muon = train(plain, layout, steps, give_matrices_to_muon);
        require_same_bits(train(codes, layout, steps, give_matrices_to_muon), muon);
        CHECK(muon.loss.back() != train(plain, layout, steps).loss.back());
      });
}

TEST_CASE("activations gathered as FP8 codes give the losses of those gathered in bf16, bit for bit") {
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{.tp = 2}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2}}) {
      DYNAMIC_SECTION(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp) {
        const int steps = steps_of(recipe);
        require_same_bits(
            train(with_history({.recipe_name = recipe, .enable_tp_float8_all_gather = true}), layout, steps),
            train(with_history({.recipe_name = recipe}), layout, steps));
      }
    }
  }
}

TEST_CASE("what is recomputed changes no bit in any recipe") {
  const std::vector<std::pair<const char*, void (*)(TrainingShape&)>> modes = {
      {"elementwise", [](TrainingShape& s) { s.model_options.recompute.assign(2, Recompute::elementwise); }},
      {"every second block",
       [](TrainingShape& s) {
         s.model_options.recompute = {Recompute::nothing, Recompute::block};
       }},
      {"all but attention of the first",
       [](TrainingShape& s) {
         s.model_options.recompute = {Recompute::all_but_attention, Recompute::elementwise};
       }},
      {"full", [](TrainingShape& s) { s.model_options.recompute.assign(2, Recompute::block); }},
  };
  for (const std::string& recipe : all_recipes()) {
    for (const Layout& layout : {Layout{}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2}}) {
      const bool gathers = layout.tp > 1;
      if (gathers && (recipe == "tensorwise_with_gw_hp" || recipe == "rowwise" || recipe == "mxfp8"))
        continue;  // each has a sibling here
      const Float8Config config = with_history({.recipe_name = recipe,
                                                .enable_fsdp_float8_all_gather = gathers,
                                                .enable_tp_float8_all_gather = gathers});
      const int steps = steps_of(recipe);
      const LayoutCurve usual = train(config, layout, steps);
      for (const auto& [name, change] : modes) {
        DYNAMIC_SECTION(recipe << ", " << name << ", TP " << layout.tp) {
          require_same_bits(train(config, layout, steps, change), usual);
        }
      }
    }
  }
}

TEST_CASE("validation, which writes less, gives the loss of training bit for bit") {
  for (const std::string& recipe : all_recipes()) {
    INFO(recipe);
    TrainingShape shape = in_float8(float8_step(), {.recipe_name = recipe});
    shape.batch = shape.validation_batch = 2;
    shape.validation_sequence = shape.sequence;
    EngineRun run(shape);
    run->parameters().initialise(7);
    const std::vector<int32_t> tokens = random_tokens(64, 320, 3), targets = random_tokens(64, 320, 4);
    const HostTokens batch{.inputs = tokens, .targets = targets, .document_start = {}, .positions = {}};
    const double validated = run->validate(batch);
    CHECK(validated > 0);
    // Scales are only of this batch, whatever was validated before it.
    for (uint32_t seed : {5, 6, 7}) {
      const std::vector<int32_t> others = random_tokens(64, 320, seed);
      run->validate({.inputs = others, .targets = others, .document_start = {}, .positions = {}});
      CHECK(run->validate(batch) == validated);
    }
    CHECK(run->train_step(batch, {.learning_rate = 1e-3, .valid_tokens = 64}).loss_sum == validated);
  }
}

// Ranks add in another order, and a last bit decides between two codes: the losses differ by up to 2.4e-3 on
// the instruction sets where that was looked at. In FP32 and BF16 the tests of layouts hold far closer.
TEST_CASE("layouts train as one rank does, within five thousandths over twenty steps") {
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise"}) {
    const Float8Config config{
        .recipe_name = recipe, .enable_fsdp_float8_all_gather = true, .enable_tp_float8_all_gather = true};
    const LayoutCurve single = train(config, {}, 20);
    for (const Layout& layout : {Layout{.dp_shard = 4}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2},
                                 Layout{.dp_replicate = 2, .dp_shard = 2}}) {
      INFO(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp << " x " << layout.dp_replicate);
      const LayoutCurve curve = train(config, layout, 20);
      for (size_t i = 0; i < single.loss.size(); ++i)
        CHECK(curve.loss[i] == Approx(single.loss[i]).epsilon(5e-3));
    }
  }
}

// Too small a difference would mean that nothing ran in FP8, too large a one that something is wrong.
TEST_CASE("two hundred steps on text end within one hundredth of bf16's loss, and not on it") {
  TinyTraining tiny;
  auto last_ten = [&](const std::string& name, TinyTraining::Overrides overrides) {
    overrides.insert(overrides.end(), {"--training.steps", "200", "--optimizer.lr", "5e-3",
                                       "--training.mixed_precision_param", "bfloat16"});
    tiny.start(name, overrides)->run();
    const std::vector<double> loss = logged(tiny / name, "loss_metrics/global_avg_loss");
    REQUIRE(loss.size() == 200);
    CHECK(loss.back() < 0.9 * loss.front());
    return std::accumulate(loss.end() - 10, loss.end(), 0.0) / 10;
  };
  const double bf16 = last_ten("bf16", {});
  for (const std::string& recipe : all_recipes()) {
    TinyTraining::Overrides overrides{"--model.converters", "[quantize.linear.float8]",
                                      "--quantize.linear.float8.recipe_name", recipe};
    if (recipe == "delayed")
      overrides.insert(overrides.end(), {"--quantize.linear.float8.amax_history_length", "8"});
    const double gap = std::abs(last_ten(recipe, overrides) - bf16) / bf16;
    INFO(recipe << ": " << gap);
    CHECK(gap > 0);
    CHECK(gap < 0.01);
  }
}

// Not the gradient but the flag of the operand tells: FP8 saturates infinities.
TEST_CASE("an infinity in one rank's weight makes every rank skip the same step, replicas too") {
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise", "mxfp8"}) {
    for (const Layout& layout : {Layout{.dp_replicate = 2}, Layout{.dp_replicate = 2, .dp_shard = 2},
                                 Layout{.dp_shard = 2, .tp = 2}}) {
      for (const bool gathers : {false, true}) {
        TrainingShape whole = float8_step();
        whole.batch = 4;
        const TrainingShape shape = shape_on(
            in_float8(whole, {.recipe_name = recipe, .enable_fsdp_float8_all_gather = gathers}, layout.tp),
            layout);
        std::vector<std::vector<int>> skipped(static_cast<size_t>(layout.world_size()));
        run_thread_ranks({.ranks = layout.world_size()}, [&](Communicator& world) {
          EngineRun run(shape, std::make_unique<RankGroups>(groups_over(world, layout.mesh())),
                        {DeviceType::cpu, 0});
          run->parameters().initialise(7);
          int w2 = 0;
          while (run->parameters().specs()[static_cast<size_t>(w2)].name != "layers.0.feed_forward.w2") ++w2;
          // The last replica's and slice's first shard: blockwise, others hold no row of it.
          const ShardCoordinates& at = run->parameters().coordinates();
          const bool is_here =
              at.shard_rank == 0 && at.tp_rank == layout.tp - 1 && at.replica_rank == layout.dp_replicate - 1;
          float* weight = run->parameters().shard(w2).master.as<float>();
          const float good = *weight;
          const std::vector<int32_t> tokens =
              random_tokens(shape.batch * shape.sequence, 300, static_cast<uint32_t>(run.ranks().data_rank));
          for (int step = 0; step < 3; ++step) {
            if (is_here) *weight = step == 1 ? std::numeric_limits<float>::infinity() : *weight;
            run->parameters().refresh_compute_copies();
            const StepOutputs out =
                run->train_step({.inputs = tokens, .targets = tokens, .document_start = {}, .positions = {}},
                                {.learning_rate = 1e-3, .optimizer_step = step + 1, .valid_tokens = 128});
            skipped[static_cast<size_t>(world.rank())].push_back(out.skipped);
            if (is_here && step == 1) *weight = good;
          }
        });
        INFO(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp << " x "
                    << layout.dp_replicate);
        for (const auto& mine : skipped) CHECK(mine == std::vector<int>{0, 1, 0});
      }
    }
  }
}
