#include "apps/devices/available_memory.h"
#include "apps/report/startup_report.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/overrides.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

Config config_of(const Overrides& more) {
  return load_config("", Overrides{"--training.seq_len", "64", "--training.local_batch_size", "1"} + more);
}

const Device kHost{DeviceType::cpu, 0};

}  // namespace

TEST_CASE(
    "a step that does not fit is refused before it begins, on all ranks, with what is large and what shrinks "
    "it") {
  const Config config = config_of({"--model.flavor", "405B"});
  {
    RankGroups alone = solo_rank_groups();
    const Experiment e = resolve_experiment(config, nullptr, 1);
    const StepPlan plan = record_step(e.shape, kHost, alone);
    CHECK_THROWS_AS(require_memory(e, plan.memory, kHost, *alone.control), MemoryError);
    CHECK_THROWS_WITH(require_memory(e, plan.memory, kHost, *alone.control),
                      Contains("[memory] the step needs ") &&
                          Contains(" are free for this rank; largest items: ") && !Contains("Muon"));
    std::vector<std::string> with_muon{"--model.flavor", "405B", "--optimizer.name", "Muon"};
    const Experiment on_one = resolve_experiment(config_of(with_muon), nullptr, 1);
    const StepPlan muon = record_step(on_one.shape, kHost, alone);
    CHECK(muon.flops(Precision::bf16) > plan.flops(Precision::bf16));
    // Eighths of everything are small beside the matrix that one rank holds whole.
    with_muon.insert(with_muon.end(), {"--parallelism.tensor_parallel_degree", "8"});
    const StepPlan owner =
        record_rank(resolve_experiment(config_of(with_muon), nullptr, 8).shape, kHost, Mesh({.tp = 8}, 8), 0);
    CHECK_THROWS_WITH(require_memory(on_one, owner.memory, kHost, *alone.control),
                      Contains("muon product 3.25 GiB") &&
                          Contains("leave the largest matrices, which Muon needs whole on one rank, to AdamW "
                                   "(optimizer.param_groups with optimizer_name: AdamW), or shard"));
    CHECK(memory_for_rank(kHost, *alone.control) > 0);
  }
  std::vector<std::string> messages(2);
  test::run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
    const Experiment e = resolve_experiment(config, nullptr, 2);
    RankGroups ranks = test::groups_over(world, e.mesh);
    const StepPlan plan = record_step(e.shape, kHost, ranks);
    try {
      require_memory(e, plan.memory, kHost, *ranks.control);
    } catch (const MemoryError& error) {
      messages[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  CHECK_THAT(messages[0], Contains("[ranks] rank 0 cannot continue: the step needs ") &&
                              Contains(" are free for this rank; largest items: "));
  CHECK(messages[1] == messages[0]);
}

TEST_CASE("what memory needs less of is advised only where it is not so already") {
  RankGroups alone = solo_rank_groups();
  const auto advice = [&](const Overrides& keys, std::optional<int64_t> snapshot = {}) {
    const Experiment e =
        resolve_experiment(load_config("", Overrides{"--training.seq_len", "64"} + keys), nullptr, 1);
    const StepPlan plan = record_step(e.shape, kHost, alone);
    const std::string message =
        test::message_of([&] { require_memory(e, plan.memory, kHost, *alone.control, snapshot); });
    return message.substr(message.find(snapshot ? "this rank" : ". Lower"));
  };
  const Overrides large{"--model.flavor", "405B"},
      one = large + Overrides{"--training.local_batch_size", "1"},
      full{"--activation_checkpoint.mode", "full"}, half{"--optimizer.state_dtype", "bfloat16"};
  CHECK(advice(large + Overrides{"--training.local_batch_size", "2"}) ==
        ". Lower training.local_batch_size (gradient accumulation keeps global_batch_size) or "
        "training.seq_len, set activation_checkpoint.mode: full or optimizer.state_dtype: bfloat16, or shard "
        "over more ranks");
  CHECK(advice(one + full) ==
        ". Lower training.seq_len, set optimizer.state_dtype: bfloat16, or shard over more ranks");
  CHECK(advice(one + half) ==
        ". Lower training.seq_len, set activation_checkpoint.mode: full, or shard over more ranks");
  CHECK(advice(one + full + half) == ". Lower training.seq_len, or shard over more ranks");
  CHECK(advice(half, int64_t{1} << 50) ==
        "this rank: set checkpoint.async_mode: disabled, or shard over more ranks");
}

TEST_CASE("memory that validation or samples take is refused with the keys that shrink it") {
  RankGroups alone = solo_rank_groups();
  const auto message = [&](const std::vector<std::string>& keys) {
    const Experiment e = resolve_experiment(config_of(keys), nullptr, 1);
    const StepPlan plan = record_step(e.shape, kHost, alone);
    return test::message_of([&] { require_memory(e, plan.memory, kHost, *alone.control); });
  };
  CHECK_THAT(message({"--validation.enable", "true", "--validation.dataset_path", "a.txt",
                      "--validation.seq_len", "128", "--validation.local_batch_size", "4000000"}),
             Contains("[memory] validation needs ") &&
                 Contains(". Lower validation.local_batch_size or validation.seq_len, set optimizer.") &&
                 !Contains("training.") && !Contains("activation_checkpoint"));
  CHECK_THAT(message({"--evaluation.enable", "true", "--evaluation.prompts", "[a]",
                      "--evaluation.max_new_tokens", "1073741824"}),
             Contains("[memory] the run with its sample texts needs ") &&
                 Contains(". Lower evaluation.max_new_tokens, or shorten or drop evaluation.prompts, set ") &&
                 !Contains("training."));
}
