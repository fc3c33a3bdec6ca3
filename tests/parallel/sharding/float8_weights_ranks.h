#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/cost.h"
#include "fp8/recipe.h"
#include "parallel/sharding/fsdp.h"
#include "parallel/sharding/initialise_shard.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/values.h"

// Two FP8 weights on the ranks of a layout, as threads: what products read of them, and what quantizing the
// whole weight in one piece gives.
namespace ottava::test::float8_weights {

using fp8::Granularity;

inline constexpr uint64_t kSeed = 5;

/// A weight cut along rows and one cut along columns, each in a unit of its own. Neither divides evenly among
/// 3 or 8 shards, and of 8 shards some hold nothing of the second. With `mx` the first always divides into
/// whole blocks of 32 rows, the second only among 3 shards.
inline std::vector<ParameterSpec> weights(bool mx = false) {
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
  bool gathers_codes = true;
  bool is_mx() const { return recipe == fp8::RecipeName::mxfp8; }
};

inline FsdpOptions options_of(const Setting& s) {
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
                                .gathers_codes = s.gathers_codes});
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
inline void on_ranks(const Setting& s, const std::function<void(Rank&)>& body) {
  const int count = s.shards * s.tp;
  run_thread_ranks({.ranks = count}, [&](Communicator& world) {
    RankGroups ranks = groups_over(world, Mesh({.dp_shard = s.shards, .tp = s.tp}, count));
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

inline std::vector<uint8_t> bytes_of(const Tensor& t) {
  const auto* from = static_cast<const uint8_t*>(t.data);
  return {from, from + t.bytes()};
}

struct Bytes {
  std::vector<uint8_t> codes, scales;
  bool operator==(const Bytes&) const = default;
};

/// What a product would read of a weight. Its unit is gathered for this use and let go afterwards, unless
/// `keep`.
inline Bytes operand(Rank& rank, size_t entry, WeightUse use, bool keep = false) {
  const int unit = weights()[entry].unit;
  rank.fsdp.unshard(unit, use);
  const fp8::Float8Tensor q = rank.fsdp.float8_weight(entry, use);
  const fp8::Float8Codes& read =
      use == WeightUse::backward && !q.columnwise.empty() ? q.columnwise : q.rowwise;
  Bytes out;
  if (!rank.is_planning) out = {bytes_of(read.codes), bytes_of(read.scale_inverse)};
  if (!keep) rank.fsdp.reshard(unit);
  return out;
}

/// The whole slice of a tensor-parallel rank, as one process would hold it.
inline std::vector<float> slice_of(size_t entry, int tp_rank, int tp, bool mx = false) {
  const ParameterSpec spec = weights(mx)[entry];
  const Shape shape = tensor_parallel_shape(spec, tp);
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  Stream stream = Stream::cpu();
  initialise_shard(stream, spec, {.tp_rank = tp_rank, .tp_size = tp}, kSeed, view_of(values.data(), shape));
  return values;
}

inline uint32_t rounded_amax(std::vector<float> values) {
  for (float& v : values) v = static_cast<float>(bf16(v));
  return largest_bits(values);
}

/// What the weights are multiplied by, and what those are multiplied by whose amax makes the scale (in recipe
/// delayed the weights of an earlier step).
struct Factors {
  float values = 1, scaled_for = 1;
};

/// What quantizing that slice in one piece gives.
inline Bytes expected(const Setting& s, size_t entry, int tp_rank, WeightUse use, Factors factors = {}) {
  const fp8::Recipe recipe = fp8::make_recipe(s.recipe);
  const fp8::OperandRecipe& how = use == WeightUse::forward ? recipe.forward.b : recipe.input_gradient.b;
  std::vector<float> values = slice_of(entry, tp_rank, s.tp, s.is_mx()),
                     whole = slice_of(entry, 0, 1, s.is_mx());
  for (float& v : values) v *= factors.values;
  for (float& v : whole) v *= factors.scaled_for;
  const Shape shape = tensor_parallel_shape(weights(s.is_mx())[entry], s.tp);
  const bool transposes = use == WeightUse::backward && how.granularity != Granularity::tensor &&
                          how.granularity != Granularity::block_128x128;
  const Shape stored = transposes ? Shape{shape[1], shape[0]} : shape;
  const Shape scales = fp8::scale_shape(how.granularity, stored[0], stored[1]);
  Bytes out{
      std::vector<uint8_t>(static_cast<size_t>(stored.numel())),
      std::vector<uint8_t>(static_cast<size_t>(scales.numel()) * size_of(fp8::scale_dtype(how.granularity)))};
  const fp8::Float8Codes q{{out.codes.data(), how.format, stored},
                           {out.scales.data(), fp8::scale_dtype(how.granularity), scales}};
  uint32_t amax = rounded_amax(whole);
  std::vector<uint32_t> columns(static_cast<size_t>(shape[1]), 0);
  Stream stream = Stream::cpu();
  const Tensor x = view_of(values.data(), shape), column_amax = view_of(columns.data(), {shape[1]});
  fp8::column_amax(stream, x, column_amax);
  fp8::Quantize args{.x = x, .granularity = how.granularity, .rounding = how.rounding};
  (transposes ? args.transposed : args.out) = q;
  if (how.granularity == Granularity::tensor) args.amax = view_of(&amax, {1});
  if (transposes && how.granularity == Granularity::row) args.column_amax = column_amax;
  fp8::quantize(stream, args);
  return out;
}

/// The ranks' answers, compared after they have ended: assertions belong to one thread.
using Answers = std::vector<std::vector<Bytes>>;

inline void scale_masters(Rank& rank, float factor) {
  if (rank.is_planning) return;
  for (int p = 0; p < 2; ++p) {
    const Tensor master = rank.fsdp.shard(p).master;
    for (int64_t i = 0; i < master.numel(); ++i) master.as<float>()[i] *= factor;
  }
}

inline int64_t amax_calls(Rank& rank) {
  int64_t calls = 0;
  for (const CommStats::Total& t : rank.ranks.world->stats().totals())
    calls += t.label == "weight amaxes" ? t.calls : 0;
  return calls;
}

}  // namespace ottava::test::float8_weights
