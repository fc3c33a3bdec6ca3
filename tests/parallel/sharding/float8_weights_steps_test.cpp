#include <limits>

#include "core/ops/elementwise.h"
#include "tests/fp8/recipes.h"
#include "tests/parallel/sharding/float8_weights_ranks.h"
#include "tests/support/catch.h"

// What happens to FP8 weights from step to step: what is exchanged, what stays, what is made again.
using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::float8_weights;

TEST_CASE("one all-reduce of amaxes per optimizer step, none for scales that lie within shards") {
  using fp8::RecipeName;
  for (const fp8::RecipeName recipe : recipes()) {
    for (bool gathers : {true, false}) {
      const Setting s{recipe, 2, 2, gathers};
      const bool per_tensor = recipe == RecipeName::tensorwise ||
                              recipe == RecipeName::tensorwise_with_gw_hp || recipe == RecipeName::delayed ||
                              recipe == RecipeName::rowwise_with_gw_hp;
      std::vector<int64_t> calls(4, -1), after(4, -1), columns(4, -1);
      on_ranks(s, [&](Rank& rank) {
        const auto r = static_cast<size_t>(rank.ranks.world->rank());
        for (int step = 0; step < 3; ++step) {
          rank.fsdp.begin_step();
          for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
            for (size_t entry : {0u, 1u}) operand(rank, entry, WeightUse::forward);
          }
          if (step == 0) calls[r] = amax_calls(rank);
          rank.fsdp.weights_changed();
        }
        after[r] = amax_calls(rank);
        columns[r] = 0;
        for (const CommStats::Total& t : rank.ranks.world->stats().totals())
          columns[r] += t.label == "weight column amaxes" ? t.calls : 0;
      });
      INFO(fp8::name_of(recipe) << (gathers ? " gathered" : ""));
      for (size_t r = 0; r < 4; ++r) {
        CHECK(calls[r] == (per_tensor ? 1 : 0));
        CHECK(after[r] == (per_tensor ? 3 : 0));
        CHECK(columns[r] == (recipe == RecipeName::rowwise && gathers ? 3 : 0));
      }
    }
  }
}

// Runs once diverged because codes of the first micro-batch were read with a scale of the second: the two
// must stay together.
TEST_CASE("codes and scale stay what they are through a step, though amaxes are measured anew") {
  for (const fp8::RecipeName recipe : recipes()) {
    for (int shards : {1, 3}) {
      Answers answers(static_cast<size_t>(shards));
      on_ranks({recipe, shards, 1, true}, [&](Rank& rank) {
        std::vector<Bytes> mine;
        rank.fsdp.begin_step();
        for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
          for (WeightUse use : {WeightUse::forward, WeightUse::backward})
            mine.push_back(operand(rank, 0, use));
          if (!rank.is_planning) fill_zero(rank.stream, rank.fsdp.float8()->amax());
          rank.fsdp.begin_forward_only();  // validation in the middle
          rank.fsdp.begin_step();
        }
        answers[static_cast<size_t>(rank.ranks.world->rank())] = std::move(mine);
      });
      INFO(fp8::name_of(recipe) << " FSDP " << shards);
      for (const auto& mine : answers) {
        for (size_t i = 2; i < mine.size(); ++i) CHECK((mine[i] == mine[i % 2]));
      }
    }
  }
}

TEST_CASE("a step, a load and validation find the weights' own codes; whatever else they keep is stale") {
  for (const fp8::RecipeName recipe : {fp8::RecipeName::tensorwise, fp8::RecipeName::rowwise,
                                       fp8::RecipeName::blockwise, fp8::RecipeName::mxfp8}) {
    for (const Setting& s :
         {Setting{recipe, 1, 1, false}, Setting{recipe, 2, 1, true}, Setting{recipe, 2, 1, false}}) {
      Answers answers(static_cast<size_t>(s.shards));
      on_ranks(s, [&](Rank& rank) {
        std::vector<Bytes> mine;
        auto look = [&] {
          for (WeightUse use : {WeightUse::forward, WeightUse::backward})
            mine.push_back(operand(rank, 0, use));
        };
        rank.fsdp.begin_step();
        look();
        scale_masters(rank, 3);
        rank.fsdp.refresh_compute_copies();  // the optimizer writes them with the masters
        rank.fsdp.weights_changed();
        rank.fsdp.begin_forward_only();  // validation comes before the next step
        look();
        rank.fsdp.begin_step();
        look();
        scale_masters(rank, 1 / 3.0f);
        rank.fsdp.refresh_compute_copies();  // a load
        rank.fsdp.begin_step();
        look();
        answers[static_cast<size_t>(rank.ranks.world->rank())] = std::move(mine);
      });
      INFO(fp8::name_of(recipe) << " FSDP " << s.shards << (s.gathers_codes ? " gathered" : ""));
      for (const auto& mine : answers) {
        REQUIRE(mine.size() == 8);
        for (size_t k : {0u, 1u}) {
          const WeightUse use = k == 0 ? WeightUse::forward : WeightUse::backward;
          CHECK((mine[k] == expected(s, 0, 0, use)));
          CHECK((mine[2 + k] == expected(s, 0, 0, use, {3, 3})));
          CHECK_FALSE((mine[2 + k] == mine[k]));
          CHECK((mine[4 + k] == mine[2 + k]));
          CHECK_FALSE((mine[6 + k] == mine[4 + k]));
        }
      }
    }
  }
}

TEST_CASE("codes are made again without memory that the plan of a step would have to know of") {
  // Validation may find them stale where the step after it does not: ranks of 8 without rows included.
  for (const fp8::RecipeName recipe : recipes()) {
    CHECK_NOTHROW(on_ranks({recipe, 8, 1, true}, [&](Rank& rank) {
      rank.fsdp.begin_step();
      if (rank.is_planning) return;
      rank.fsdp.weights_changed();
      rank.fsdp.begin_step();
    }));
  }
}

TEST_CASE(
    "a NaN or an infinity in one shard is flagged on every rank that shares the scale, with a full history "
    "too") {
  for (const fp8::RecipeName recipe : {fp8::RecipeName::tensorwise, fp8::RecipeName::delayed}) {
    for (float poison : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      for (int filled : {0, 2}) {
        std::vector<std::vector<uint32_t>> flags(6);
        on_ranks({recipe, 3, 2, true}, [&](Rank& rank) {
          for (int step = 0; step < filled; ++step) {
            rank.fsdp.begin_step();
            rank.fsdp.float8()->advance_history(rank.stream);
            rank.fsdp.weights_changed();
          }
          const Tensor master = rank.fsdp.shard(0).master;
          if (!rank.is_planning && rank.ranks.world->rank() == 5) master.as<float>()[7] = poison;
          rank.fsdp.begin_step();
          const Tensor& raised = rank.fsdp.float8()->non_finite();
          if (!rank.is_planning)
            flags[static_cast<size_t>(rank.ranks.world->rank())] = {raised.as<uint32_t>(),
                                                                    raised.as<uint32_t>() + 2};
        });
        INFO(fp8::name_of(recipe) << " after " << filled << " steps, " << poison);
        for (const auto& raised : flags) CHECK(raised == std::vector<uint32_t>{1, 0});
      }
    }
  }
}
