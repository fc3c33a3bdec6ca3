#include "parallel/float8_weights.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "core/cost.h"
#include "core/ops/elementwise.h"
#include "fp8/recipe.h"
#include "parallel/fsdp.h"
#include "parallel/initialise_shard.h"
#include "parallel/thread/thread_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/values.h"

// Shard, measure, exchange, quantize, gather: the bytes of quantizing the whole weight, however it was cut.
// Ranks as threads.

using namespace ottava;
using namespace ottava::test;
using fp8::Granularity;

namespace {

constexpr uint64_t kSeed = 5;

/// A weight cut along rows, one along columns, in a unit each. Neither divides evenly among 3 or 8 shards,
/// and the second leaves ranks of 8 with nothing. Of mxfp8 the first always divides into whole blocks of 32
/// rows, the second among 3.
std::vector<ParameterSpec> weights(bool mx = false) {
  auto weight = [](const char* name, int64_t rows, int64_t columns, TensorParallel cut, int unit) {
    return ParameterSpec{.name = name,
                         .parts = {{.name = name, .hf_name = name, .rows = rows, .groups = rows, .init = {}}},
                         .columns = columns,
                         .tensor_parallel = cut,
                         .unit = unit};
  };
  if (mx)
    return {weight("w13", 768, 160, TensorParallel::rows, 0),
            weight("w2", 96, 256, TensorParallel::columns, 1)};
  return {weight("w13", 392, 144, TensorParallel::rows, 0),
          weight("w2", 20, 272, TensorParallel::columns, 1)};
}

struct Setting {
  fp8::RecipeName recipe = fp8::RecipeName::tensorwise;
  int shards = 1, tp = 1;
  bool gathers_bytes = true;
  bool is_mx() const { return recipe == fp8::RecipeName::mxfp8; }
};

FsdpOptions options_of(const Setting& s) {
  FsdpOptions out;
  const fp8::Recipe recipe = fp8::make_recipe(s.recipe);
  const std::vector<ParameterSpec> specs = weights(s.is_mx());
  for (int p = 0; p < 2; ++p) {
    const auto& spec = specs[static_cast<size_t>(p)];
    out.float8.specs.push_back({.name = spec.name,
                                .parameter = p,
                                .rows = {0, tensor_parallel_shape(spec, s.tp)[0]},
                                .forward = recipe.forward.b,
                                .backward = recipe.input_gradient.b,
                                .is_delayed = recipe.has_history(),
                                .gathers_bytes = s.gathers_bytes});
  }
  out.float8.amax_history_length = 2;
  return out;
}

struct Rank {
  RankGroups& ranks;
  Stream& stream;
  Arena& arena;
  Fsdp& fsdp;
  bool is_planning = false;
};

/// Runs the body on every rank, first to plan its memory, then in earnest.
void on_ranks(const Setting& s, const std::function<void(Rank&)>& body) {
  const int count = s.shards * s.tp;
  run_thread_ranks({.ranks = count}, [&](Communicator& world) {
    std::vector<int> everyone(static_cast<size_t>(count));
    std::iota(everyone.begin(), everyone.end(), 0);
    RankGroups ranks(world.split("world", everyone), world.split("world", everyone),
                     Mesh({.dp_shard = s.shards, .tp = s.tp}, count));
    auto run = [&](Stream& stream, Arena& arena) {
      Fsdp fsdp(stream, arena, ranks, weights(s.is_mx()), options_of(s));
      Rank rank{ranks, stream, arena, fsdp, arena.is_recording()};
      fsdp.initialise(kSeed);
      Arena::Phase phase(arena, "test");
      ranks.world->stats().reset();
      body(rank);
      fsdp.weights_changed();
      stream.synchronize();
    };
    CostRecorder recorder;
    Stream meta = Stream::meta(recorder, {DeviceType::cpu, 0});
    Arena plan;
    run(meta, plan);
    Stream stream = Stream::cpu();
    Arena arena(plan.plan(), {DeviceType::cpu, 0});
    run(stream, arena);
  });
}

std::vector<uint8_t> bytes_of(const Tensor& t) {
  const auto* from = static_cast<const uint8_t*>(t.data);
  return {from, from + t.bytes()};
}

struct Bytes {
  std::vector<uint8_t> codes, scales;
  bool operator==(const Bytes&) const = default;
};

/// What a product would read of a weight, its unit gathered for this use and let go after it.
Bytes operand(Rank& rank, size_t entry, WeightUse use, bool keep = false) {
  const int unit = weights()[entry].unit;
  rank.fsdp.unshard(unit, use);
  const fp8::ScaledOperand q = rank.fsdp.float8_weight(entry, use);
  Bytes out;
  if (!rank.is_planning) out = {bytes_of(q.matrix.bytes), bytes_of(q.matrix.scale_inverse)};
  if (!keep) rank.fsdp.reshard(unit);
  return out;
}

/// The whole slice of a tensor-parallel rank, as one process would hold it.
std::vector<float> slice_of(size_t entry, int tp_rank, int tp, bool mx = false) {
  const ParameterSpec spec = weights(mx)[entry];
  const Shape shape = tensor_parallel_shape(spec, tp);
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  Stream stream = Stream::cpu();
  initialise_shard(stream, spec, {.tp_rank = tp_rank, .tp_size = tp}, kSeed, view_of(values.data(), shape));
  return values;
}

uint32_t rounded_amax(std::vector<float> values) {
  for (float& v : values) v = static_cast<float>(bf16(v));
  return largest_bits(values);
}

/// Quantizing that slice in one piece, times `factor`.
Bytes expected(const Setting& s, size_t entry, int tp_rank, WeightUse use, float factor = 1) {
  const fp8::Recipe recipe = fp8::make_recipe(s.recipe);
  const fp8::OperandRecipe& how = use == WeightUse::forward ? recipe.forward.b : recipe.input_gradient.b;
  std::vector<float> values = slice_of(entry, tp_rank, s.tp, s.is_mx()),
                     whole = slice_of(entry, 0, 1, s.is_mx());
  for (float& v : values) v *= factor;
  for (float& v : whole) v *= factor;
  const Shape shape = tensor_parallel_shape(weights(s.is_mx())[entry], s.tp);
  const bool turns = use == WeightUse::backward && how.granularity != Granularity::tensor &&
                     how.granularity != Granularity::block_128x128;
  const Shape stored = turns ? Shape{shape[1], shape[0]} : shape;
  const Shape scales = fp8::scale_shape(how.granularity, stored[0], stored[1]);
  Bytes out{
      std::vector<uint8_t>(static_cast<size_t>(stored.numel())),
      std::vector<uint8_t>(static_cast<size_t>(scales.numel()) * size_of(fp8::scale_dtype(how.granularity)))};
  const fp8::Quantized q{{out.codes.data(), how.format, stored},
                         {out.scales.data(), fp8::scale_dtype(how.granularity), scales}};
  uint32_t amax = rounded_amax(whole);
  std::vector<uint32_t> columns(static_cast<size_t>(shape[1]), 0);
  Stream stream = Stream::cpu();
  const Tensor x = view_of(values.data(), shape), column_amax = view_of(columns.data(), {shape[1]});
  fp8::column_amax(stream, x, column_amax);
  fp8::Quantize args{.x = x, .granularity = how.granularity, .rounding = how.rounding};
  (turns ? args.transposed : args.out) = q;
  if (how.granularity == Granularity::tensor) args.amax = view_of(&amax, {1});
  if (turns && how.granularity == Granularity::row) args.column_amax = column_amax;
  fp8::quantize(stream, args);
  return out;
}

std::vector<fp8::RecipeName> recipes() {
  std::vector<fp8::RecipeName> out;
  for (std::string_view name : fp8::recipe_names()) out.push_back(fp8::parse_recipe(name));
  return out;
}

/// The ranks' answers, compared after they have ended: assertions belong to one thread.
using Answers = std::vector<std::vector<Bytes>>;

void scale_masters(Rank& rank, float factor) {
  if (rank.is_planning) return;
  for (int p = 0; p < 2; ++p) {
    const Tensor master = rank.fsdp.shard(p).master;
    for (int64_t i = 0; i < master.numel(); ++i) master.as<float>()[i] *= factor;
  }
}

int64_t amax_calls(Rank& rank) {
  int64_t calls = 0;
  for (const CommStats::Total& t : rank.ranks.world->stats().totals())
    calls += t.label == "weight amaxes" ? t.calls : 0;
  return calls;
}

}  // namespace

TEST_CASE("bytes that were gathered are those of the whole weight, for every recipe and cut") {
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

// A scale over the wrong group (each rank its own) was behind diverging runs elsewhere; here other bytes
// would show it.
TEST_CASE("weights of mxfp8 travel as bytes where shards are whole blocks of 32 rows, each use for itself") {
  for (int shards : {2, 3}) {
    std::map<std::string, int64_t> sent;  // by label
    on_ranks({fp8::RecipeName::mxfp8, shards, 1, true}, [&](Rank& rank) {
      rank.fsdp.begin_step();
      for (size_t entry : {0u, 1u}) {
        for (WeightUse use : {WeightUse::forward, WeightUse::backward}) operand(rank, entry, use);
      }
      if (rank.is_planning || rank.ranks.world->rank() != 0) return;
      for (const CommStats::Total& t : rank.ranks.world->stats().totals()) {
        CHECK(t.collective == Collective::all_gather);
        sent[t.label] += t.sent_bytes;
      }
    });
    INFO(shards << " shards");
    // A byte per element and one per block of 32, for either use; 96 rows / 2 = 48 are no whole blocks: bf16,
    // packed, twice.
    const int64_t w13 = 768 * 160 * 33 / 32, w2 = 96 * 256;
    CHECK(sent["w13"] == 2 * w13 / shards * (shards - 1));
    CHECK(sent["w2"] + sent["packed"] ==
          (shards == 3 ? 2 * w2 * 33 / 32 : 2 * w2 * 2) / shards * (shards - 1));
  }
  CHECK(
      gathers_bytes({.forward = {.granularity = Granularity::block_1x32}, .gathers_bytes = true}, 4096, 128));
  CHECK_FALSE(
      gathers_bytes({.forward = {.granularity = Granularity::block_1x32}, .gathers_bytes = true}, 4096, 256));
  CHECK(gathers_bytes({.forward = {.granularity = Granularity::block_128x128}, .gathers_bytes = true}, 4096,
                      256));
  CHECK_FALSE(gathers_bytes({.forward = {.granularity = Granularity::block_1x32}}, 4096, 2));
}

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

// Bytes of the first micro-batch with a scale of the second once made runs diverge: they are a pair that
// nothing parts.
TEST_CASE("bytes and scale stay what they are through a step, though amaxes are measured anew") {
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

TEST_CASE("a step, a load and validation find the weights' own bytes; whatever else they keep is stale") {
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
      INFO(fp8::name_of(recipe) << " FSDP " << s.shards << (s.gathers_bytes ? " gathered" : ""));
      for (const auto& mine : answers) {
        REQUIRE(mine.size() == 8);
        for (size_t k : {0u, 1u}) {
          const WeightUse use = k == 0 ? WeightUse::forward : WeightUse::backward;
          CHECK((mine[k] == expected(s, 0, 0, use)));
          CHECK((mine[2 + k] == expected(s, 0, 0, use, 3)));
          CHECK_FALSE((mine[2 + k] == mine[k]));
          CHECK((mine[4 + k] == mine[2 + k]));
          CHECK_FALSE((mine[6 + k] == mine[4 + k]));
        }
      }
    }
  }
}

TEST_CASE("bytes are made again without memory that the plan of a step would have to know of") {
  // Validation may find them stale where the step after it does not: ranks of 8 without rows included.
  for (const fp8::RecipeName recipe : recipes()) {
    on_ranks({recipe, 8, 1, true}, [&](Rank& rank) {
      rank.fsdp.begin_step();
      if (rank.is_planning) return;
      rank.fsdp.weights_changed();
      CHECK_NOTHROW(rank.fsdp.begin_step());
    });
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

TEST_CASE("an all-zero weight has a finite scale and zero bytes") {
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
