#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// What ranks must have in common from step to step: the histories of recipe delayed, and weights that are
// kept whole.

using namespace ottava;
using namespace ottava::test;

namespace {

HostTokens host(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets) {
  return {.inputs = tokens, .targets = targets, .document_start = {}, .positions = {}};
}

/// Runs body on the ranks of a layout, as threads, with an engine of this step. Assertions belong to one
/// thread: not there.
void on_ranks(const TrainingShape& whole, const Layout& layout,
              const std::function<void(EngineRun&, int rank)>& body) {
  run_thread_ranks({.ranks = layout.world_size()}, [&](Communicator& world) {
    EngineRun run(shape_on(whole, layout), std::make_unique<RankGroups>(groups_over(world, layout.mesh())),
                  {DeviceType::cpu, 0});
    run->parameters().initialise(7);
    body(run, world.rank());
  });
}

using Amaxes = std::vector<uint32_t>;

Amaxes words(const Tensor& t) { return {t.as<uint32_t>(), t.as<uint32_t>() + t.numel()}; }

/// What a rank measured in each step, and what it remembers of all of them.
struct Measured {
  std::vector<Amaxes> operands, weights;  ///< per step; weights: of its own shards
  Amaxes operand_history, weight_history;
};

Amaxes own_weights(EngineRun& run) {
  Amaxes out;
  for (const Float8WeightSpec& spec : run->parameters().float8()->specs()) {
    float largest = 0;
    for (float w : run.values(run->parameters().shard(spec.parameter).master))
      largest = std::max(largest, std::fabs(static_cast<float>(bf16(w))));
    out.push_back(std::bit_cast<uint32_t>(largest));
  }
  return out;
}

std::vector<Measured> measure(const Float8Config& config, const Layout& layout, int steps) {
  std::vector<Measured> ranks(static_cast<size_t>(layout.world_size()));
  TrainingShape whole = float8_step();
  whole.batch = 2 * layout.data_ranks();
  on_ranks(in_float8(whole, config, layout.tp), layout, [&](EngineRun& run, int rank) {
    Measured& mine = ranks[static_cast<size_t>(rank)];
    for (int step = 0; step < steps; ++step) {
      mine.weights.push_back(own_weights(run));
      const auto seed = static_cast<uint32_t>(100 * step + run.ranks().data_rank);
      const std::vector<int32_t> tokens = random_tokens(64, 320, seed),
                                 targets = random_tokens(64, 320, seed + 50);
      run->train_step(
          host(tokens, targets),
          {.learning_rate = 1e-2, .optimizer_step = step + 1, .valid_tokens = 64 * layout.data_ranks()});
      mine.operands.push_back(words(run->float8()->step_amax()));
    }
    if (!run->float8()->history()) return;
    mine.operand_history = words(run->float8()->history()->rows);
    mine.weight_history = words(run->parameters().float8()->history()->rows);
  });
  return ranks;
}

/// Step by step, the largest of all ranks.
Amaxes largest(const std::vector<Measured>& ranks, std::vector<Amaxes> Measured::*what) {
  Amaxes all;
  for (size_t step = 0; step < (ranks[0].*what).size(); ++step) {
    Amaxes row = (ranks[0].*what)[step];
    for (const Measured& rank : ranks) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = std::max(row[i], (rank.*what)[step][i]);
    }
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace

// Ranks with histories of their own would scale the same weight by different amaxes, a few steps later.
TEST_CASE("delayed: every rank remembers the largest amaxes of all ranks") {
  constexpr int kSteps = 3;
  for (const Layout& layout :
       {Layout{.dp_shard = 2, .tp = 2}, Layout{.dp_replicate = 2, .dp_shard = 2}, Layout{.tp = 2}}) {
    for (const bool gathers : {false, true}) {
      INFO("FSDP " << layout.dp_shard << " x TP " << layout.tp << " x " << layout.dp_replicate << ", gathers "
                   << gathers);
      Float8Config config{.recipe_name = "delayed",
                          .amax_history_length = kSteps,
                          .enable_fsdp_float8_all_gather = gathers,
                          .enable_tp_float8_all_gather = gathers};
      const std::vector<Measured> delayed = measure(config, layout, kSteps);
      // While a history fills, delayed is tensorwise, whose ranks keep what they measure for themselves.
      config.recipe_name = "tensorwise";
      const std::vector<Measured> own = measure(config, layout, kSteps);
      CHECK((own[0].operands != own[1].operands));
      CHECK((own[0].weights != own[1].weights));
      const Amaxes operands = largest(own, &Measured::operands), weights = largest(own, &Measured::weights);
      for (const Measured& rank : delayed) {
        CHECK((rank.operand_history == operands));
        CHECK((rank.weight_history == weights));
      }
    }
  }
}

// Weights that stay whole from step to step are the ones that could be stale.
TEST_CASE(
    "weights that are never let go of give the numbers of those gathered each time, validations between "
    "steps too") {
  constexpr int64_t kTokens = 64;
  auto train = [&](const Float8Config& config, FsdpOptions::Reshard reshard) {
    const Layout layout{.dp_shard = 2, .micro_batches = 2};
    TrainingShape whole = in_float8(float8_step(), config);
    whole.parameters.reshard = reshard;
    whole.validation_batch = 1;
    whole.validation_sequence = whole.sequence;
    std::vector<std::vector<double>> numbers(2);
    on_ranks(whole, layout, [&](EngineRun& run, int rank) {
      std::vector<double>& mine = numbers[static_cast<size_t>(rank)];
      for (int step = 0; step < 3; ++step) {
        const auto seed = static_cast<uint32_t>(10 * step + rank);
        const std::vector<int32_t> tokens = random_tokens(2 * kTokens, 320, seed),
                                   targets = random_tokens(2 * kTokens, 320, seed + 5),
                                   unseen = random_tokens(kTokens / 2, 320, seed + 7);
        const StepOutputs out =
            run->train_step(host(tokens, targets),
                            {.learning_rate = 1e-2, .optimizer_step = step + 1, .valid_tokens = 4 * kTokens});
        for (double number : {out.loss_sum, out.grad_norm, run->validate(host(unseen, unseen))})
          mine.push_back(number);
      }
      for (size_t p = 0; p < run->parameters().specs().size(); ++p) {
        for (float w : run.values(run->parameters().shard(static_cast<int>(p)).master))
          mine.push_back(static_cast<double>(w));
      }
    });
    return numbers;
  };
  for (const char* recipe : {"tensorwise", "rowwise"}) {
    for (const bool gathers : {false, true}) {
      INFO(recipe << ", gathers " << gathers);
      const Float8Config config{.recipe_name = recipe, .enable_fsdp_float8_all_gather = gathers};
      const auto always = train(config, FsdpOptions::Reshard::always);
      CHECK(always[0][0] != always[0][3]);
      CHECK((train(config, FsdpOptions::Reshard::never) == always));
    }
  }
}
