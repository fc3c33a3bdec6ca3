#include "apps/decide/recompute_by_rank.h"

#include "apps/decide/decide.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::EndsWith;

namespace {

constexpr const char* kMode = "activation_checkpoint.mode";

Experiment pipeline_of(const std::vector<std::string>& more) {
  const Overrides options =
      words(
          "--model.flavor debugmodel --training.seq_len 64 --training.local_batch_size 8 "
          "--parallelism.pipeline_parallel_microbatch_size 1") +
      Overrides{std::string("--") + kMode, "auto"} + more;
  return resolve_experiment(load_config("", options), nullptr, 4);
}
Experiment four_ranks(const std::vector<std::string>& more = {}) {
  return pipeline_of(words("--parallelism.pipeline_parallel_degree 4 --model.n_layers 32") + more);
}

int64_t work(Recompute r) { return static_cast<int64_t>(r); }

}  // namespace

TEST_CASE("each rank of a pipeline recomputes a share of its own blocks") {
  for (const bool loops : {false, true}) {
    Experiment e = four_ranks();
    if (loops) {
      e = four_ranks({"--parallelism.pipeline_parallel_schedule", "Interleaved1F1B"});
      REQUIRE(e.shape.pipeline.shape.chunks == 2);
    }
    const RecomputeByRank by_rank(e.shape);
    REQUIRE(by_rank.ranks() == 4);
    REQUIRE(by_rank.count() == 11);
    const std::vector<Recompute> blocks = by_rank.blocks({2, 4, 7, 10});
    REQUIRE(blocks.size() == 32);
    for (int rank = 0; rank < 4; ++rank) {
      const std::vector<bool> held = e.shape.pipeline.units_of(rank);
      int64_t all = 0, some = 0;
      for (int block = 0; block < 32; ++block) {
        if (!held[block + 1]) continue;
        const Recompute r = blocks[block];
        ++all, some += r == (rank == 0 ? Recompute::elementwise : Recompute::all_but_attention);
        if (rank == 0) CHECK((r == Recompute::nothing || r == Recompute::elementwise));
        if (rank == 1) CHECK(r == Recompute::elementwise);
        if (rank == 2) CHECK((r == Recompute::elementwise || r == Recompute::all_but_attention));
        if (rank == 3) CHECK(r == Recompute::block);
      }
      CHECK(some == (rank == 0 || rank == 2 ? all / 2 : 0));
    }
    CHECK(by_rank.text({2, 4, 7, 10}) ==
          "pp rank 0: op of 1 in 2 blocks; pp rank 1: op; pp rank 2: op, all but attention of 1 in 2 blocks; "
          "pp rank 3: full");
    CHECK(by_rank.text({4, 0, 0, 0}) == "pp rank 0: op; pp ranks 1 to 3: none");
    CHECK(by_rank.text({4, 4, 9, 9}) == "pp ranks 0 to 1: op; pp ranks 2 to 3: all_but_attention");
    CHECK(by_rank.text(by_rank.on_all(9)) == "all_but_attention");
  }
}

TEST_CASE("without a pipeline there is one rank, and choices that change nothing are passed over") {
  const Experiment e = pipeline_of({"--parallelism.pipeline_parallel_degree", "1", "--model.n_layers", "3"});
  const RecomputeByRank by_rank(e.shape);
  REQUIRE(by_rank.ranks() == 1);
  using Step = RecomputeByRank::Step;
  const auto names_by = [&](Step step) {
    RecomputeByRank::Choices choices = by_rank.on_all(0);
    std::vector<std::string> names{by_rank.text(choices)};
    int64_t before = 0;
    while (by_rank.recompute_more(choices, 0, step)) {
      names.push_back(by_rank.text(choices));
      int64_t now = 0;
      for (const Recompute r : by_rank.blocks(choices)) now += work(r);
      CHECK(now > before);
      before = now;
    }
    return names;
  };
  CHECK(names_by(Step::by_parts) ==
        std::vector<std::string>{"none", "op of 1 in 2 blocks", "op of 3 in 4 blocks", "op",
                                 "op, all but attention of 1 in 2 blocks",
                                 "op, all but attention of 3 in 4 blocks", "all_but_attention", "full"});
  CHECK(names_by(Step::by_modes) == std::vector<std::string>{"none", "op", "all_but_attention", "full"});
  for (const auto& [from, to] : {std::pair(0, 0), {4, 1}, {9, 5}, {10, 10}}) {
    RecomputeByRank::Choices choices = by_rank.on_all(from);
    by_rank.recompute_less(choices, 0);
    CHECK(choices == by_rank.on_all(to));
  }
}

TEST_CASE("mode auto lets each rank of a pipeline recompute as little as fits there") {
  const Experiment open = four_ranks();
  const RecomputeByRank by_rank(open.shape);
  // A block takes the less the more it recomputes, times the micro-batches that the rank has in flight.
  int recorded = 0;
  const auto decided = [&](std::vector<int64_t> available) {
    recorded = 0;
    return decided_by_memory(open, [&, available](const TrainingShape& shape) {
      ++recorded;
      std::vector<MemoryNeed> needs;
      for (int rank = 0; rank < 4; ++rank) {
        const std::vector<bool> held = shape.pipeline.units_of(rank);
        int64_t bytes = 0;
        for (int block = 0; block < 32; ++block)
          if (held[block + 1]) bytes += (4 - rank) * (10 - 3 * work(shape.model_options.recompute[block]));
        needs.push_back({.bytes = bytes << 20, .available = available[rank] << 20, .share = 1});
      }
      return needs;
    });
  };
  const auto value = [&](const Experiment& e) { return e.decisions.find(kMode)->value; };
  const Experiment roomy = decided({1000, 1000, 1000, 1000});
  CHECK(value(roomy) == "none");
  CHECK(recorded == 1);
  const Experiment mixed = decided({230, 182, 155, 160});
  CHECK(value(mixed) ==
        "pp rank 0: op; pp rank 1: op, all but attention of 1 in 8 blocks; pp rank 2: op of 1 in 4 blocks; "
        "pp rank 3: none");
  CHECK_THAT(mixed.decisions.find(kMode)->reason,
             Contains("the fastest that fits, and ") && EndsWith(" free suffice on pp rank 1"));
  CHECK(mixed.shape.model_options.recompute == by_rank.blocks({4, 5, 1, 0}));
  const Experiment too_little = decided({10, 1000, 10, 1000});
  CHECK(value(too_little) == "pp rank 0: full; pp rank 1: none; pp rank 2: full; pp rank 3: none");
  CHECK(too_little.decisions.find(kMode)->reason ==
        "less recomputation would take 128.0 MiB of 10.0 MiB free on pp rank 0");
  CHECK(recorded <= 8);
}

TEST_CASE("a rank of a pipeline without blocks has nothing to choose") {
  const Experiment open = pipeline_of({"--parallelism.pipeline_parallel_degree", "2", "--model.n_layers", "4",
                                       "--parallelism.data_parallel_shard_degree", "2",
                                       "--parallelism.pipeline_parallel_split_points", "[norm]"});
  REQUIRE(open.shape.pipeline.stages[1].size() == 1);
  const auto need_of_last = [](int64_t bytes) {
    return [bytes](const TrainingShape&) {
      return std::vector<MemoryNeed>{{.bytes = 1, .available = 10, .share = 1},
                                     {.bytes = bytes, .available = 10, .share = 1}};
    };
  };
  for (const int64_t bytes : {1, 11}) {
    const Experiment e = decided_by_memory(open, need_of_last(bytes));
    REQUIRE(e.decisions.find(kMode));
    CHECK(e.decisions.find(kMode)->value == "none");
    CHECK_FALSE(e.decisions.find(kMode)->reason.empty());
  }
}
