#include "apps/predict/memory_moves.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "apps/predict/decided_step.h"
#include "apps/predict/recompute_modes.h"
#include "core/contains.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"

// What takes less memory than a configuration that does not fit.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr double kByte = 1.0 / (1 << 30);

struct Moves {
  RecordedLayout from;
  std::vector<MemoryMove> moves;
  std::vector<const MemoryMove*> that_recompute(const ActivationCheckpointConfig& what) const {
    std::vector<const MemoryMove*> out;
    for (const MemoryMove& move : moves)
      if (move.after.layout.recompute == what) out.push_back(&move);
    return out;
  }
};
Moves moves_within(const Planned& p, double limit) {
  const LayoutRecorder recorder(p.config, p.planned, &p.machine, limit);
  RecordedLayout from = recorder.record(layout_of(p.planned.experiment));
  std::vector<MemoryMove> moves = memory_moves(from, limit, recorder);
  return {std::move(from), std::move(moves)};
}

double gib_of(const Planned& p, const ActivationCheckpointConfig& what) {
  Layout layout = layout_of(p.planned.experiment);
  layout.recompute = what;
  return LayoutRecorder(p.config, p.planned, &p.machine).record(layout).gib_with_nccl();
}

bool is_in_order(const Moves& m, size_t count) {
  const auto cost = [&](const MemoryMove& move) {
    return (move.after.time->seconds - m.from.time->seconds) /
           (m.from.gib_with_nccl() - move.after.gib_with_nccl());
  };
  return std::is_sorted(m.moves.begin(), m.moves.begin() + static_cast<std::ptrdiff_t>(count),
                        [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
}

Planned one_sequence_with(const char* mode) {
  return Planned({"--activation_checkpoint.mode", mode, "--training.global_batch_size", "1",
                  "--training.seq_len", "512"},
                 1);
}

}  // namespace

TEST_CASE("each move of memory is what recording the changed configuration says") {
  struct Case {
    int ranks;
    Overrides keys;
    double part = 0.9;  // of what it takes
  };
  const Case cases[] = {{2, {"--training.global_batch_size", "16", "--training.local_batch_size", "4"}},
                        {4, {"--training.local_batch_size", "4"}},
                        {4, {"--training.local_batch_size", "4"}, 0.2},
                        {4, {"--parallelism.data_parallel_replicate_degree", "2"}, 0.7},
                        {4,
                         {"--training.local_batch_size", "8", "--parallelism.pipeline_parallel_degree", "2",
                          "--parallelism.pipeline_parallel_microbatch_size", "2"}}};
  for (const auto& [ranks, keys, part] : cases) {
    const Overrides overrides = keys + Overrides{"--activation_checkpoint.mode", "none"};
    const Planned p(overrides, ranks);
    // With gradients that are summed after each micro-batch.
    const double limit = part * moves_within(p, kByte).from.gib();
    const Moves m = moves_within(p, limit);
    CHECK(m.from.gib() > limit);
    REQUIRE(m.moves.size() >= 5);
    for (const MemoryMove& move : m.moves) {
      Overrides changed = overrides;
      for (const auto& [key, value] : move.keys) changed.insert(changed.end(), {"--" + key, value});
      INFO(options_text(keys_of(m.from.layout)) << " to " << options_text(move.keys));
      const Planned other(changed, static_cast<int>(move.after.layout.ranks()));
      auto [e, roles] = decided_step(other.planned.experiment, other.planned.device, limit, &other.machine);
      CHECK(e.global_batch == move.after.layout.global_batch);
      CHECK(predict_step(roles, other.machine).seconds == move.after.time->seconds);
      CHECK(roles[move.after.role].memory.total_bytes() == move.after.plan.memory.total_bytes());
      CHECK(move.after.gib() < m.from.gib());
    }
  }
}

TEST_CASE("mode auto is a move of memory, in place of the mode that it comes to") {
  const Planned p = one_sequence_with("none");
  const double op = gib_of(p, kModeOp), all_but_attention = gib_of(p, kModeAllButAttention),
               full = gib_of(p, kModeFull);
  REQUIRE(full < all_but_attention);
  REQUIRE(all_but_attention < op);
  struct Case {
    double limit;
    std::string_view comes_to;
    std::vector<ActivationCheckpointConfig> beside;
  };
  const Case cases[] = {
      {op, "op", {kModeAllButAttention, kModeFull}},
      {op - kByte, "op, all but attention of 1 in 8 blocks", {kModeOp, kModeAllButAttention, kModeFull}},
      {all_but_attention, "all_but_attention", {kModeOp, kModeFull}},
      {all_but_attention - kByte, "full", {kModeOp, kModeAllButAttention}}};
  for (const auto& [limit, comes_to, beside] : cases) {
    INFO(comes_to);
    const Moves m = moves_within(p, limit);
    const std::vector<const MemoryMove*> automatic = m.that_recompute(kModeAuto);
    REQUIRE(automatic.size() == 1);
    CHECK(automatic[0]->after.automatic_recompute() == comes_to);
    CHECK(automatic[0]->after.gib_with_nccl() <= limit);
    CHECK(automatic[0]->keys == LayoutKeys{{"activation_checkpoint.mode", "auto"}});
    for (const ActivationCheckpointConfig& mode : {kModeOp, kModeAllButAttention, kModeFull})
      CHECK(m.that_recompute(mode).size() == (contains(beside, mode) ? 1 : 0));
    CHECK(is_in_order(m, m.moves.size()));
  }
}

TEST_CASE("several moves together leave to mode auto what is recomputed") {
  const Planned p = one_sequence_with("none");
  const Moves m = moves_within(p, gib_of(p, kModeFull) - kByte);
  const std::vector<const MemoryMove*> automatic = m.that_recompute(kModeAuto);
  REQUIRE(automatic.size() == 2);
  CHECK(automatic[0]->after.automatic_recompute() == "full");
  CHECK(is_in_order(m, m.moves.size() - 1));
  const MemoryMove& together = m.moves.back();
  CHECK(&together == automatic[1]);
  CHECK(together.after.layout.moments == DType::bf16);
  CHECK(together.after.automatic_recompute() != "full");
  CHECK(together.after.gib_with_nccl() < gib_of(p, kModeFull));
  CHECK(together.after.time->seconds < automatic[0]->after.time->seconds);
}

TEST_CASE(
    "more ranks are the last moves: the fewest that fit with changes, then the fewest that fit without") {
  const Planned p = one_sequence_with("full");
  const auto gib_of_ranks = [&](int64_t times, DType moments) {
    Layout layout = layout_of(p.planned.experiment);
    layout.dp_shard *= times, layout.global_batch *= times, layout.moments = moments;
    return LayoutRecorder(p.config, p.planned, &p.machine).record(layout).gib_with_nccl();
  };
  const double limit = gib_of_ranks(2, DType::bf16);
  REQUIRE(limit < gib_of_ranks(1, DType::bf16));
  REQUIRE(limit < gib_of_ranks(2, DType::f32));
  REQUIRE(limit >= gib_of_ranks(4, DType::f32));
  const Moves m = moves_within(p, limit);
  REQUIRE(m.moves.size() > 2);
  const LayoutKeys& with_changes = (m.moves.end() - 2)->keys;
  const LayoutKeys& without = m.moves.back().keys;
  CHECK(with_changes == LayoutKeys{{"parallelism.data_parallel_shard_degree", "2"},
                                   {"training.global_batch_size", "2"},
                                   {"optimizer.state_dtype", "bfloat16"}});
  CHECK(without ==
        LayoutKeys{{"parallelism.data_parallel_shard_degree", "4"}, {"training.global_batch_size", "4"}});

  const double least = gib_of_ranks(8, DType::bf16);
  REQUIRE(least < std::min(gib_of_ranks(4, DType::bf16), gib_of_ranks(8, DType::f32)));
  CHECK(moves_within(p, least).moves.back().keys ==
        LayoutKeys{{"parallelism.data_parallel_shard_degree", "8"},
                   {"training.global_batch_size", "8"},
                   {"optimizer.state_dtype", "bfloat16"}});
  CHECK(moves_within(p, least - kByte).moves.back().keys ==
        LayoutKeys{{"parallelism.data_parallel_shard_degree", "8"}, {"training.global_batch_size", "8"}});

  const Moves wide = moves_within(p, gib_of_ranks(2, DType::f32));  // no change is needed there
  CHECK(wide.moves.back().keys ==
        LayoutKeys{{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "2"}});
  CHECK((wide.moves.end() - 2)->after.layout.dp_shard == 1);
}

TEST_CASE("mode auto is no move where it changes nothing") {
  for (const char* mode : {"auto", "full"}) {
    const Planned p = one_sequence_with(mode);
    const Moves m = moves_within(p, gib_of(p, kModeFull) - kByte);
    INFO(mode);
    REQUIRE_FALSE(m.moves.empty());
    CHECK(std::ranges::none_of(m.moves, [&](const MemoryMove& move) {
      return move.after.layout.recompute != m.from.layout.recompute;
    }));
  }
}

TEST_CASE("a move of a pipeline says what its mean rank computes, since mode auto lets ranks differ") {
  const Overrides overrides = words(
      "--activation_checkpoint.mode none --parallelism.pipeline_parallel_degree 2 "
      "--training.global_batch_size 4 --training.seq_len 512");
  const Planned p(overrides, 2);
  const double limit = (gib_of(p, kModeOp) + gib_of(p, kModeAllButAttention)) / 2;
  const Moves m = moves_within(p, limit);
  const std::vector<const MemoryMove*> automatic = m.that_recompute(kModeAuto);
  REQUIRE(automatic.size() == 1);
  const RecordedLayout& after = automatic[0]->after;
  CHECK_THAT(std::string(after.automatic_recompute()), Catch::Contains("pp rank 0: "));
  const Experiment e = resolve_planned(with_layout(p.config, after.layout), p.planned, 2);
  const auto [decided, roles] = decided_step(e, p.planned.device, limit, &p.machine);
  REQUIRE(roles.size() == 2);
  const auto flops = [](const StepPlan& role) {
    return role.flops(Precision::fp32) + role.flops(Precision::bf16) + role.flops(Precision::fp8);
  };
  CHECK(flops(roles[0]) != flops(roles[1]));
  CHECK(after.flops() == Approx((flops(roles[0]) + flops(roles[1])) / 2));
}
