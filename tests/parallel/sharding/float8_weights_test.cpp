#include "parallel/sharding/float8_weights.h"

#include <cstring>
#include <map>
#include <string>

#include "tests/fp8/recipes.h"
#include "tests/parallel/sharding/float8_weights_ranks.h"
#include "tests/support/catch.h"

// Shard, measure, exchange, quantize, gather: the bytes of quantizing the whole weight, however it was cut.
using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::float8_weights;

TEST_CASE("codes that were gathered are those of the whole weight, for every recipe and cut") {
  for (const fp8::RecipeName recipe : recipes()) {
    for (int shards : {1, 2, 3, 8}) {
      for (int tp : {1, 2, 4}) {
        if (shards * tp > 8) continue;  // many threads on few cores wait more than they work
        for (bool gathers : {true, false}) {
          if (gathers ? shards == 1 : shards == 2 || shards == 8) continue;
          const Setting s{recipe, shards, tp, gathers};
          Answers answers(static_cast<size_t>(shards * tp));
          on_ranks(s, [&](Rank& rank) {
            rank.fsdp.begin_step();
            std::vector<Bytes> mine;
            for (size_t entry : {0u, 1u}) {
              for (WeightUse use : {WeightUse::forward, WeightUse::backward})
                mine.push_back(operand(rank, entry, use));
            }
            answers[static_cast<size_t>(rank.ranks.world->rank())] = std::move(mine);
          });
          INFO(fp8::name_of(recipe) << " FSDP " << shards << " TP " << tp
                                    << (gathers ? " gathered in FP8" : ""));
          for (size_t r = 0; r < answers.size(); ++r) {
            const int tp_rank = static_cast<int>(r) % tp;
            size_t i = 0;
            for (size_t entry : {0u, 1u}) {
              for (WeightUse use : {WeightUse::forward, WeightUse::backward}) {
                INFO("rank " << r << ", weight " << entry
                             << (use == WeightUse::forward ? ", forward" : ", backward"));
                CHECK((answers[r][i++] == expected(s, entry, tp_rank, use)));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("weights of mxfp8 travel as codes where shards are whole blocks of 32 rows, each use for itself") {
  for (int shards : {2, 3}) {
    std::map<std::string, int64_t> sent;  // by label
    int64_t others = 0;                   // calls that gather nothing
    on_ranks({fp8::RecipeName::mxfp8, shards, 1, true}, [&](Rank& rank) {
      rank.fsdp.begin_step();
      for (size_t entry : {0u, 1u}) {
        for (WeightUse use : {WeightUse::forward, WeightUse::backward}) operand(rank, entry, use);
      }
      if (rank.is_planning || rank.ranks.world->rank() != 0) return;
      for (const CommStats::Total& t : rank.ranks.world->stats().totals()) {
        others += t.collective == Collective::all_gather ? 0 : t.calls;
        sent[t.label] += t.sent_bytes;
      }
    });
    INFO(shards << " shards");
    CHECK(others == 0);
    // A byte per element and one per block of 32, for either use; 96 rows / 2 = 48 are no whole blocks: bf16,
    // packed, twice.
    const int64_t w13 = 768 * 160 * 33 / 32, w2 = 96 * 256;
    CHECK(sent["w13"] == 2 * w13 / shards * (shards - 1));
    CHECK(sent["w2"] + sent["packed"] ==
          (shards == 3 ? 2 * w2 * 33 / 32 : 2 * w2 * 2) / shards * (shards - 1));
  }
  auto in_codes = [](Granularity g, bool asked, int shards) {
    const Float8WeightSpec spec{
        .forward = {.granularity = g}, .backward = {.granularity = g}, .gathers_codes = asked};
    return float8_weight_travel(spec, 4096, shards).in_codes;
  };
  CHECK(in_codes(Granularity::block_1x32, true, 128));
  CHECK_FALSE(in_codes(Granularity::block_1x32, true, 256));
  CHECK(in_codes(Granularity::block_128x128, true, 256));
  CHECK_FALSE(in_codes(Granularity::block_1x32, false, 2));
}

// A scale over the wrong group (each rank its own) was behind diverging runs elsewhere; here other bytes
// would show it.
TEST_CASE("a rank's own amax would not do: the scale is that of all shards and slices") {
  const Setting s{.shards = 3, .tp = 2};
  std::vector<float> inverses(6);
  on_ranks(s, [&](Rank& rank) {
    rank.fsdp.begin_step();
    const Bytes q = operand(rank, 0, WeightUse::forward);
    if (!rank.is_planning)
      std::memcpy(&inverses[static_cast<size_t>(rank.ranks.world->rank())], q.scales.data(), sizeof(float));
  });
  int different = 0;
  for (int tp_rank : {0, 1}) {
    const fp8::Scale own = fp8::scale_from_amax(rounded_amax(slice_of(0, tp_rank, 2)), fp8::kE4M3);
    different += own.inverse != inverses[0];
  }
  CHECK(different == 1);
  for (float inverse : inverses) CHECK(inverse == inverses[0]);
}

TEST_CASE("an all-zero weight has a finite scale and zero codes") {
  for (const fp8::RecipeName recipe : recipes()) {
    std::vector<int> good(3, 0);
    on_ranks({recipe, 3, 1, true}, [&](Rank& rank) {
      scale_masters(rank, 0);
      rank.fsdp.refresh_compute_copies();
      rank.fsdp.begin_step();
      const Bytes q = operand(rank, 0, WeightUse::forward);
      if (rank.is_planning) return;
      const Tensor& flags = rank.fsdp.float8()->non_finite();
      bool is_zero = flags.as<uint32_t>()[0] == 0;
      for (uint8_t code : q.codes) is_zero &= (code & 0x7f) == 0;
      good[static_cast<size_t>(rank.ranks.world->rank())] = is_zero;
    });
    INFO(fp8::name_of(recipe));
    CHECK(good == std::vector<int>{1, 1, 1});
  }
}

// The history holds the amaxes of 1 and 1/2 times the weights when they are 1/4 of what they were: all ranks
// scale for 1.
TEST_CASE("delayed: with a full history codes have the scale of its largest amax, for every cut and travel") {
  for (const auto& [shards, tp] : {std::pair{1, 1}, std::pair{3, 2}}) {
    for (bool gathers : {true, false}) {
      if (gathers && shards == 1) continue;
      const Setting s{fp8::RecipeName::delayed, shards, tp, gathers};
      Answers answers(static_cast<size_t>(shards * tp)), newer(answers.size());
      on_ranks(s, [&](Rank& rank) {
        const auto r = static_cast<size_t>(rank.ranks.world->rank());
        auto next_step = [&] {
          rank.fsdp.begin_step();
          std::vector<Bytes> mine;
          for (size_t entry : {0u, 1u}) {
            for (WeightUse use : {WeightUse::forward, WeightUse::backward})
              mine.push_back(operand(rank, entry, use));
          }
          rank.fsdp.float8()->advance_history(rank.stream);
          scale_masters(rank, 0.5f);
          rank.fsdp.refresh_compute_copies();
          rank.fsdp.weights_changed();
          return mine;
        };
        next_step();
        next_step();
        answers[r] = next_step();
        newer[r] = next_step();  // the first has left the history: 1/8 of the weights, scaled for 1/2 of them
      });
      INFO("FSDP " << shards << " TP " << tp << (gathers ? " gathered in FP8" : ""));
      const auto slices = static_cast<size_t>(tp);
      for (size_t r = slices; r < answers.size(); ++r) {
        CHECK((answers[r] == answers[r % slices]));
        CHECK((newer[r] == newer[r % slices]));
      }
      for (size_t r = 0; r < slices; ++r) {
        size_t i = 0;
        for (size_t entry : {0u, 1u}) {
          for (WeightUse use : {WeightUse::forward, WeightUse::backward}) {
            INFO("slice " << r << ", weight " << entry);
            CHECK((answers[r][i] == expected(s, entry, static_cast<int>(r), use, {0.25f, 1})));
            CHECK((newer[r][i] == expected(s, entry, static_cast<int>(r), use, {0.125f, 0.5f})));
            ++i;
          }
        }
      }
    }
  }
}
