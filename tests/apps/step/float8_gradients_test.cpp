#include <limits>

#include "apps/step/non_finite.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// Whole steps whose gradients travel in FP8 (parallel/sharding/float8_exchange.h), ranks as threads. What
// they send is counted in float8_traffic_test.cpp.

using namespace ottava;
using namespace ottava::test;

// Each addend is rounded to E4M3, once: weights stay near those of a run without, and are not the same.
TEST_CASE(
    "gradients that travel in FP8 train as those in f32 do, in any layout, and as fast or slow as they "
    "come") {
  const Float8Config usual{.recipe_name = "tensorwise"},
      in_bytes{.recipe_name = "tensorwise", .enable_float8_gradient_all_to_all = true};
  for (const Layout& layout : {Layout{.dp_shard = 4}, Layout{.dp_shard = 2, .tp = 2, .micro_batches = 2},
                               Layout{.dp_replicate = 2, .dp_shard = 2}}) {
    for (const bool every : {false, true}) {
      INFO("FSDP " << layout.dp_shard << " x TP " << layout.tp << " x " << layout.dp_replicate << ", every "
                   << every);
      auto shape = [&](const Float8Config& config) {
        TrainingShape whole = wide_float8_step();
        whole.parameters.reduce_every_micro_batch = every;
        return in_float8(whole, config, layout.tp);
      };
      const LayoutCurve want = train_on(shape(usual), layout, 4), got = train_on(shape(in_bytes), layout, 4);
      CHECK(got.loss[0] == want.loss[0]);
      CHECK(got.grad_norm[0] != want.grad_norm[0]);
      for (size_t i = 0; i < want.loss.size(); ++i) {
        CHECK(got.loss[i] == Approx(want.loss[i]).epsilon(1e-3));
        CHECK(got.grad_norm[i] == Approx(want.grad_norm[i]).epsilon(1e-2));
      }
      const LayoutCurve slow = train_slowly_on(shape(in_bytes), layout, 4);
      CHECK(slow.loss == got.loss);
      CHECK(slow.weights == got.weights);
    }
  }
}

TEST_CASE(
    "a gradient that is not finite on one rank and travels in FP8 makes every rank skip the step, and is "
    "named") {
  constexpr int kRanks = 2, kPoisoned = 319;
  TrainingShape whole = wide_float8_step();
  whole.batch = kRanks;
  const Layout layout{.dp_shard = kRanks};
  const TrainingShape shape =
      shape_on(in_float8(whole, {.enable_float8_gradient_all_to_all = true}, 1), layout);
  std::vector<std::vector<int>> skipped(kRanks);
  std::vector<std::string> named(kRanks);
  run_thread_ranks({.ranks = kRanks}, [&](Communicator& world) {
    EngineRun run(shape, std::make_unique<RankGroups>(groups_over(world, layout.mesh())),
                  {DeviceType::cpu, 0});
    run->parameters().initialise(7);
    const ParameterShard& embedding = run->parameters().shard(0);
    float* poisoned =
        kPoisoned < embedding.rows.end && kPoisoned >= embedding.rows.begin
            ? embedding.master.as<float>() + (kPoisoned - embedding.rows.begin) * embedding.master.cols()
            : nullptr;
    for (int step = 0; step < 3; ++step) {
      std::vector<int32_t> tokens = random_tokens(32, kPoisoned, static_cast<uint32_t>(world.rank()));
      if (step == 1 && world.rank() == 1) tokens[5] = kPoisoned;
      if (poisoned) *poisoned = step == 1 ? std::numeric_limits<float>::infinity() : 0;
      run->parameters().refresh_compute_copies();
      const StepOutputs out =
          run->train_step({.inputs = tokens, .targets = tokens, .document_start = {}, .positions = {}},
                          {.learning_rate = 1e-3, .optimizer_step = step + 1, .valid_tokens = 64});
      skipped[static_cast<size_t>(world.rank())].push_back(out.skipped);
      if (step == 1) named[static_cast<size_t>(world.rank())] = non_finite_operands(*run);
    }
  });
  for (const auto& mine : skipped) CHECK(mine == std::vector<int>{0, 1, 0});
  CHECK(named[0].empty());
  CHECK_THAT(named[1], Catch::StartsWith("a gradient that travels in FP8, x of layers.0.attention.wqkv"));
}
