#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "apps/predict/all_layouts.h"
#include "apps/predict/estimated_step.h"
#include "apps/predict/recompute_modes.h"
#include "apps/predict/sample_step.h"
#include "apps/predict/search.h"
#include "core/contains.h"
#include "core/error.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"

// Where a mode does not fit, and the next leaves room, mode auto recomputes something between them.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

using Mode = ActivationCheckpointConfig::Mode;

Layout recomputing(Layout layout, const ActivationCheckpointConfig& what) {
  layout.recompute = what;
  return layout;
}
Layout automatic(const Layout& layout) { return recomputing(layout, {.mode = Mode::automatic}); }

// In the middle between two modes, of the layout that the configuration has.
double limit_between(const Planned& p, const ActivationCheckpointConfig& less = kModeOp,
                     const ActivationCheckpointConfig& more = kModeAllButAttention) {
  const LayoutRecorder recorder(p.config, p.planned, &p.machine);
  const auto gib = [&](const ActivationCheckpointConfig& mode) {
    return recorder.record(recomputing(layout_of(p.planned.experiment), mode)).gib_with_nccl();
  };
  REQUIRE(gib(more) < gib(less));
  return (gib(less) + gib(more)) / 2;
}

// The fastest of all layouts with mode auto and without it, each recorded as it is within the limit.
std::optional<RecordedLayout> best_by_hand(const Planned& p, double limit) {
  const LayoutRecorder recorder(p.config, p.planned, &p.machine, limit);
  std::optional<RecordedLayout> best;
  for (const Layout& one : all_layouts(p.planned, p.machine)) {
    for (const auto reshard : {ParallelismConfig::Reshard::automatic, ParallelismConfig::Reshard::never}) {
      Layout layout = one;
      if (reshard != layout.reshard && (layout.shards() == 1 || layout.pp > 1)) continue;
      layout.reshard = reshard;
      std::vector<Layout> both{layout};
      if (layout.recompute.mode == Mode::full) both.push_back(automatic(layout));  // once for all modes
      for (const Layout& tried : both) {
        try {
          RecordedLayout recorded = recorder.record(tried);
          if (recorded.gib_with_nccl() > limit) continue;
          if (!best || recorded.time->seconds < best->time->seconds) best = std::move(recorded);
        } catch (const ConfigError&) {  // does not divide
        }
      }
    }
  }
  return best;
}

}  // namespace

TEST_CASE("where mode auto recomputes less than any mode that fits, a search finds it") {
  struct Case {
    int ranks;
    Overrides keys;
  };
  const Case cases[] = {
      {1, {"--training.global_batch_size", "1"}},
      {1, {"--training.global_batch_size", "1", "--model.n_layers", "2"}},
      {1, {"--training.global_batch_size", "4", "--training.local_batch_size", "2"}},
      {4, {"--training.global_batch_size", "4", "--model.n_layers", "4", "--training.seq_len", "256"}},
      {2,
       {"--training.global_batch_size", "4", "--model.n_layers", "8",
        "--parallelism.pipeline_parallel_degree", "2"}},
  };
  for (const auto& [less, more] : {std::pair(kModeNone, kModeOp), std::pair(kModeOp, kModeAllButAttention)}) {
    int won = 0;
    for (const auto& [ranks, keys] : cases) {
      for (const bool float8 : {false, true}) {
        const Planned p((float8 ? kFloat8 : Overrides{}) + keys, ranks, 4);
        const double limit = limit_between(p, less, more);
        const std::optional<RecordedLayout> best = best_by_hand(p, limit);
        REQUIRE(best);
        INFO("by hand: " << describe(best->layout, best->automatic_recompute()));
        const SearchResult found = search_layouts(p.config, p.planned, p.machine, {.limit_gib = limit});
        REQUIRE_FALSE(found.best.empty());
        INFO("found: " << describe(found.best[0].layout, found.best[0].automatic_recompute()));
        CHECK(found.best[0].time->seconds == Approx(best->time->seconds).epsilon(1e-9));
        won += found.best[0].layout.recompute.mode == Mode::automatic;
        for (const RecordedLayout& l : found.best) {
          CHECK(std::ranges::count(found.best, l.layout, &RecordedLayout::layout) == 1);
          CHECK(l.gib_with_nccl() <= limit);
          if (l.layout.recompute.mode == Mode::automatic)  // what a mode says is a line of that mode
            CHECK_FALSE(is_a_mode(l.automatic_recompute()));
        }
      }
    }
    CHECK(won >= 5);
  }
}

TEST_CASE("where a mode leaves memory for logits of fewer tokens only, a search finds what mode auto does") {
  const Overrides keys{"--training.global_batch_size", "1",   "--model.vocab_size", "32000",
                       "--training.seq_len",           "4096"};
  const Planned p(keys, 1, 4);
  const double limit =
      limit_between(Planned(keys + Overrides{"--model.loss_chunk_tokens", "2048"}, 1, 4), kModeNone, kModeOp);
  const LayoutRecorder recorder(p.config, p.planned, &p.machine, limit);
  const RecordedLayout none = recorder.record(recomputing(layout_of(p.planned.experiment), kModeNone));
  REQUIRE(none.gib_with_nccl() <= limit);
  const std::optional<RecordedLayout> best = best_by_hand(p, limit);
  REQUIRE(best);
  REQUIRE(best->layout.recompute.mode == Mode::automatic);
  const SearchResult found = search_layouts(p.config, p.planned, p.machine, {.limit_gib = limit});
  REQUIRE_FALSE(found.best.empty());
  INFO("found: " << describe(found.best[0].layout, found.best[0].automatic_recompute()));
  CHECK(found.best[0].layout == best->layout);
  CHECK(found.best[0].time->seconds == Approx(best->time->seconds).epsilon(1e-9));
}

TEST_CASE("where ranks of a pipeline may recompute less than the fullest, a search finds it") {
  for (const char* schedule : {"1F1B", "Interleaved1F1B"}) {
    const Planned p(
        {"--training.global_batch_size", "8", "--model.n_layers", "16", "--training.seq_len", "512",
         "--parallelism.pipeline_parallel_degree", "4", "--parallelism.pipeline_parallel_schedule", schedule},
        4, 4);
    const LayoutRecorder recorder(p.config, p.planned, &p.machine);
    const auto gib = [&](const ActivationCheckpointConfig& mode) {
      return recorder.record(recomputing(layout_of(p.planned.experiment), mode)).gib_with_nccl();
    };
    const std::vector<std::string> fixed{"parallelism.pipeline_parallel_degree=4",
                                         "training.local_batch_size=1"};
    for (const auto& [less, more] : {std::pair(kModeNone, kModeOp), std::pair(kModeOp, kModeAllButAttention),
                                     std::pair(kModeAllButAttention, kModeFull)}) {
      const double limit = (gib(less) + gib(more)) / 2;
      INFO(schedule << ", limit " << limit);
      const LayoutRecorder within(p.config, p.planned, &p.machine, limit);
      const RecordedLayout by_hand = within.record(automatic(layout_of(p.planned.experiment))),
                           all_alike = within.record(recomputing(layout_of(p.planned.experiment), more));
      CHECK_THAT(std::string(by_hand.automatic_recompute()), Contains("; pp rank"));
      CHECK(by_hand.gib_with_nccl() <= limit);
      CHECK(by_hand.time->seconds <= all_alike.time->seconds);
      const SearchResult found =
          search_layouts(p.config, p.planned, p.machine, {.limit_gib = limit, .top = 3, .fixed = fixed});
      REQUIRE_FALSE(found.best.empty());
      CHECK(found.best[0].automatic_recompute() == by_hand.automatic_recompute());
      CHECK(found.best[0].time->seconds == Approx(by_hand.time->seconds).epsilon(1e-9));
    }
  }
}

TEST_CASE("of a layout that only seems to fit with op, a search records what mode auto comes to") {
  // Estimates know what is alive at once, and not how tightly it packs: somewhere between the two op does not
  // fit when it is recorded.
  const Planned p({"--training.global_batch_size", "1", "--training.seq_len", "512"}, 1);
  const LayoutRecorder recorder(p.config, p.planned, &p.machine);
  const Layout op =
      recomputing(layout_of(p.planned.experiment), {.mode = Mode::selective, .selective_ac_option = "op"});
  const double limit = recorder.record(op).gib_with_nccl() - 1.0 / (1 << 30);
  const SearchResult found = search_layouts(p.config, p.planned, p.machine, {.limit_gib = limit});
  REQUIRE_FALSE(found.best.empty());
  CHECK(found.best[0].automatic_recompute() == "op, all but attention of 1 in 8 blocks");
}

TEST_CASE(
    "a pipeline that is asked for may be found with mode auto where op does not fit with fewer sequences") {
  const Planned p({"--training.global_batch_size", "8", "--model.n_layers", "32", "--training.seq_len", "512",
                   "--parallelism.pipeline_parallel_degree", "2"},
                  2);
  const LayoutRecorder recorder(p.config, p.planned, &p.machine);
  const auto gib = [&](const char* option, int64_t sequences) {
    Layout layout = layout_of(p.planned.experiment);
    layout.local_batch = sequences;
    return recorder.record(recomputing(layout, {.mode = Mode::selective, .selective_ac_option = option}))
        .gib_with_nccl();
  };
  const double least = gib("all_but_attention", 2), limit = least + 0.28 * (gib("op", 2) - least);
  REQUIRE(limit < gib("op", 1));
  const SearchResult found =
      search_layouts(p.config, p.planned, p.machine,
                     {.limit_gib = limit, .top = 100, .fixed = {"parallelism.pipeline_parallel_degree=2"}});
  CHECK(std::ranges::any_of(found.best, [](const RecordedLayout& l) {
    return l.layout.local_batch == 2 &&
           l.automatic_recompute().starts_with("pp rank 0: op, all but attention of 3 in 4 blocks; ");
  }));
}

TEST_CASE("what mode auto comes to is estimated by blocks of either kind") {
  for (const Overrides& keys :
       {Overrides{"--model.n_layers", "32"}, Overrides{"--model.n_layers", "17", "--training.seq_len", "512"},
        Overrides{"--training.global_batch_size", "2", "--parallelism.tensor_parallel_degree", "2"}}) {
    Overrides more = keys;
    more.insert(more.end(), {"--activation_checkpoint.mode", "auto"});
    const Planned p(more, 4);
    const Experiment& given = p.planned.experiment;
    for (const auto& [limit, comes_to] : {std::pair(limit_between(p, kModeNone, kModeOp), "op of "),
                                          std::pair(limit_between(p), "op, all but attention of ")}) {
      const auto [e, estimated] = estimate_decided(given, p.planned.device, p.machine, limit);
      const Decisions::Entry* decided = e.decisions.find("activation_checkpoint.mode");
      REQUIRE(decided);
      INFO(decided->value);
      CHECK_THAT(decided->value, Contains(comes_to));
      const StepFigures recorded =
          figures_of(record_first_rank(e.shape, p.planned.device, given.mesh), p.machine);
      CHECK(estimated.sent_bytes == recorded.sent_bytes);
      CHECK(estimated.calls == recorded.calls);
      CHECK(estimated.flops == Approx(recorded.flops).epsilon(1e-9));
      CHECK(estimated.bytes == Approx(recorded.bytes).epsilon(1e-9));
      CHECK(estimated.alive_bytes == Approx(recorded.alive_bytes).epsilon(0.02));
      CHECK(estimated.seconds == Approx(recorded.seconds).epsilon(0.02));
    }
  }
}

TEST_CASE("mode auto can be fixed, and other modes leave it out") {
  const Planned p({"--training.global_batch_size", "8"}, 2);
  const auto modes = [&](const std::string& fix, double limit) {
    std::set<Mode> out;
    for (const RecordedLayout& l :
         search_layouts(p.config, p.planned, p.machine, {.limit_gib = limit, .top = 50, .fixed = {fix}}).best)
      out.insert(l.layout.recompute.mode);
    return out;
  };
  const double between = limit_between(p);
  for (const double limit : {70.0, between}) {
    CHECK(modes("activation_checkpoint.mode=auto", limit) == std::set{Mode::automatic});
    CHECK(modes("activation_checkpoint.mode=selective", limit) == std::set{Mode::selective});
  }
  CHECK(contains(modes("training.local_batch_size=1", between), Mode::automatic));
  CHECK_FALSE(contains(modes("training.local_batch_size=1", 70), Mode::automatic));
}

TEST_CASE("what a rank of a pipeline does as before is not recorded again, and what it does otherwise is") {
  Overrides keys = kFloat8;
  keys.insert(keys.end(), {"--training.global_batch_size", "8", "--model.n_layers", "4",
                           "--parallelism.pipeline_parallel_degree", "2"});
  const Planned p(keys, 4);
  const Experiment& e = p.planned.experiment;
  REQUIRE(e.shape.pipeline.is_on());
  const auto nothing = Recompute::nothing, op = Recompute::elementwise, block = Recompute::block;
  TrainingShape shape = e.shape;
  RoleRecordings recordings(p.planned.device, e.mesh);
  const auto check = [&] {
    const std::vector<StepPlan>& got = recordings.of(shape);
    const std::vector<StepPlan> want = sample_roles(shape, p.planned.device, e.mesh);
    REQUIRE(got.size() == 2);
    for (int role = 0; role < 2; ++role) {
      CHECK(got[role].memory.total_bytes() == want[role].memory.total_bytes());
      CHECK(got[role].flops(Precision::fp8) == want[role].flops(Precision::fp8));
      CHECK(got[role].order.events.size() == want[role].order.events.size());
      CHECK(got[role].traffic.sent_bytes() == want[role].traffic.sent_bytes());
    }
    return got[1].order.events.size();
  };
  for (const std::vector<Recompute>& blocks :
       {std::vector{nothing, nothing, nothing, nothing}, std::vector{op, op, nothing, nothing},
        std::vector{block, op, nothing, nothing}, std::vector{block, op, op, op},
        std::vector{nothing, nothing, op, op}}) {
    shape.model_options.recompute = blocks;
    check();
  }
  const size_t events = check();
  shape.model_options.loss_chunk_rows = 16;
  CHECK(check() > events);
  shape.parameters.keeps_float8_codes = !shape.parameters.keeps_float8_codes;
  check();
  shape.parameters.reduce_every_micro_batch = !shape.parameters.reduce_every_micro_batch;
  check();
}
