#include "apps/predict/search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <set>

#include "apps/predict/all_layouts.h"
#include "apps/predict/fewer_blocks.h"
#include "apps/predict/sample_step.h"
#include "core/error.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

// A search is as good as recording everything, and what it leaves out of recordings changes nothing.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

void require_equal(const StepPlan& a, const StepPlan& b) {
  CHECK(a.memory.total_bytes() == b.memory.total_bytes());
  CHECK(a.memory.persistent_bytes == b.memory.persistent_bytes);
  REQUIRE(a.costs.size() == b.costs.size());
  for (size_t i = 0; i < a.costs.size(); ++i) {
    INFO(a.costs[i].label << " " << a.costs[i].op);
    CHECK(a.costs[i].label == b.costs[i].label);
    CHECK(a.costs[i].calls == b.costs[i].calls);
    CHECK(a.costs[i].flops == b.costs[i].flops);
    CHECK(a.costs[i].bytes == b.costs[i].bytes);
  }
  CHECK(a.traffic.calls() == b.traffic.calls());
  CHECK(a.traffic.sent_bytes() == b.traffic.sent_bytes());
  REQUIRE(a.order.events.size() == b.order.events.size());
  CHECK(a.order.parts == b.order.parts);
  for (size_t i = 0; i < a.order.events.size(); ++i) {
    const RecordedEvent &x = a.order.events[i], &y = b.order.events[i];
    REQUIRE((x.kind == y.kind && x.index == y.index));
    REQUIRE(a.order.labels[static_cast<size_t>(x.label)] == b.order.labels[static_cast<size_t>(y.label)]);
  }
}

Layout random_layout(const PlannedExperiment& planned, const Machine& machine, std::mt19937& random) {
  std::vector<Layout> layouts = all_layouts(planned, machine);
  std::erase_if(layouts, [](const Layout& l) { return l.pp > 1; });  // of which every stage is recorded
  return layouts[random() % layouts.size()];
}

}  // namespace

TEST_CASE("three recorded micro-batches make the plan of many") {
  for (const Overrides& more :
       {Overrides{"--training.global_batch_size", "32"},
        Overrides{"--training.global_batch_size", "32", "--parallelism.fsdp_reduce_every_microbatch", "true"},
        Overrides{"--training.global_batch_size", "32", "--parallelism.tensor_parallel_degree", "2",
                  "--activation_checkpoint.mode", "full"},
        Overrides{"--training.global_batch_size", "32", "--parallelism.fsdp_reshard_after_forward", "never",
                  "--training.cuda_graphs", "off", "--parallelism.fsdp_reduce_every_microbatch", "true"},
        Overrides{"--training.global_batch_size", "16", "--parallelism.fsdp_reshard_after_forward", "never",
                  "--training.cuda_graphs", "off", "--parallelism.fsdp_reduce_every_microbatch", "true",
                  "--parallelism.tensor_parallel_degree", "2", "--parallelism.enable_async_tensor_parallel",
                  "true", "--activation_checkpoint.mode", "full"},
        Overrides{"--training.global_batch_size", "16", "--parallelism.fsdp_reshard_after_forward", "never",
                  "--training.cuda_graphs", "off", "--parallelism.fsdp_reduce_every_microbatch", "true",
                  "--parallelism.data_parallel_replicate_degree", "2", "--training.mixed_precision_reduce",
                  "bfloat16", "--model.converters", "[quantize.linear.float8]",
                  "--quantize.linear.float8.enable_fsdp_float8_all_gather", "true"},
        Overrides{"--training.global_batch_size", "16", "--parallelism.fsdp_reshard_after_forward", "never",
                  "--training.cuda_graphs", "off", "--parallelism.fsdp_reduce_every_microbatch", "true",
                  "--parallelism.context_parallel_degree", "2", "--training.seq_len", "512",
                  "--model.converters", "[quantize.linear.float8]",
                  "--quantize.linear.float8.enable_float8_gradient_all_to_all", "true"},
        Overrides{"--training.global_batch_size", "32", "--parallelism.data_parallel_replicate_degree", "2",
                  "--training.mixed_precision_reduce", "bfloat16", "--model.converters",
                  "[quantize.linear.float8]"}}) {
    INFO(fmt::format("{}", fmt::join(more, " ")));
    const Planned p(more, 4);
    const Experiment& e = p.planned.experiment;
    REQUIRE(e.shape.micro_batches >= 4);
    require_equal(sample_first_rank(e.shape, p.planned.device, e.mesh),
                  record_first_rank(e.shape, p.planned.device, e.mesh));
  }
}

TEST_CASE("blocks in the middle need not be recorded") {
  std::mt19937 random(3);
  int left_out = 0;
  for (int i = 0; i < 30; ++i) {
    Overrides more{"--model.n_layers", i % 3 == 0 ? "12" : "17", "--training.global_batch_size", "32"};
    if (i % 2 == 0) more.insert(more.end(), kFloat8.begin(), kFloat8.end());
    if (i % 4 == 0)
      more.insert(more.end(), {"--quantize.linear.float8.high_precision_first_blocks", "1",
                               "--quantize.linear.float8.high_precision_last_blocks", "2"});
    if (i % 5 == 0)
      more.insert(more.end(), {"--activation_checkpoint.mode", "selective",
                               "--activation_checkpoint.selective_ac_option", i % 10 == 0 ? "2" : "3"});
    const Planned p(more, 16, 4);
    const Layout layout = random_layout(p.planned, p.machine, random);
    INFO(describe(layout));
    const Experiment e = resolve_planned(with_layout(p.config, layout), p.planned, 16);
    const BlockPattern pattern = block_pattern(e.shape);
    CHECK(pattern.head + pattern.motif * pattern.times + pattern.tail == e.shape.model.layers);
    left_out += pattern.times > 4;
    const StepFigures estimate = estimate_step(e, p.planned.device, p.machine);
    const StepFigures recorded = figures_of(record_first_rank(e.shape, p.planned.device, e.mesh), p.machine);
    CHECK(estimate.alive_bytes == recorded.alive_bytes);
    CHECK(estimate.sent_bytes == recorded.sent_bytes);
    CHECK(estimate.calls == recorded.calls);
    CHECK(estimate.flops == recorded.flops);
    CHECK(estimate.bytes == recorded.bytes);
    CHECK(estimate.seconds == Approx(recorded.seconds).epsilon(0.01));
  }
  CHECK(left_out > 20);
}

TEST_CASE("a search finds what recording every layout finds") {
  for (const int ranks : {1, 4, 16}) {
    for (const bool float8 : {false, true}) {
      Overrides more = float8 ? kFloat8 : Overrides{};
      more.insert(more.end(), {"--training.global_batch_size", "32", "--model.n_layers", "6"});
      const Planned p(more, ranks, 4);
      const LayoutRecorder recorder(p.config, p.planned, &p.machine);
      const SearchOptions everything{.limit_gib = 0.2, .fixed = {}};
      std::optional<RecordedLayout> best;
      std::vector<Layout> layouts = all_layouts(p.planned, p.machine);
      for (const auto reshard : {ParallelismConfig::Reshard::always, ParallelismConfig::Reshard::never}) {
        for (Layout layout : all_layouts(p.planned, p.machine)) {
          layout.reshard = reshard;
          if (layout.dp_shard > 1) layouts.push_back(layout);
        }
      }
      for (const Layout& layout : layouts) {
        try {
          RecordedLayout recorded = recorder.record(layout);
          if (recorded.gib() > everything.limit_gib) continue;
          if (!best || recorded.time->seconds < best->time->seconds) best = std::move(recorded);
        } catch (const ConfigError&) {  // does not divide
        }
      }
      REQUIRE(best);
      INFO(ranks << " ranks, the best by hand: " << describe(best->layout));
      const SearchResult found = search_layouts(p.config, p.planned, p.machine, everything);
      REQUIRE_FALSE(found.best.empty());
      INFO("found: " << describe(found.best[0].layout));
      CHECK(found.best[0].time->seconds == Approx(best->time->seconds).epsilon(1e-9));
      CHECK(found.best[0].gib() <= everything.limit_gib);
      CHECK(std::ranges::is_sorted(found.best, {}, [](const RecordedLayout& l) { return l.time->seconds; }));
      CHECK(found.reasons.size() == found.best.size());
      CHECK(found.estimated < found.layouts + 1);
      for (const RecordedLayout& l : found.best)  // always is what default is
        CHECK(l.layout.reshard != ParallelismConfig::Reshard::always);
    }
  }
}

TEST_CASE("no way to divide the ranks is left out, ranks that share sequences and stages among them") {
  const Planned p({"--training.global_batch_size", "16", "--training.seq_len", "1024", "--model.n_layers",
                   "4", "--training.local_batch_size", "2", "--parallelism.pipeline_parallel_degree", "2"},
                  4, 4);
  const LayoutRecorder recorder(p.config, p.planned, &p.machine);
  // By hand, not by all_layouts().
  std::optional<RecordedLayout> best, best_shared;
  std::set<std::vector<int64_t>> meshes;
  using Mode = ActivationCheckpointConfig::Mode;
  using Reduce = ParallelismConfig::Reduce;
  const double limit = 0.16;
  for (const int64_t pp : {1, 2}) {
    for (const int64_t replicate : {1, 2, 4}) {
      for (const int64_t shard : {1, 2, 4}) {
        for (const int64_t cp : {1, 2, 4}) {
          for (const int64_t tp : {1, 2, 4}) {
            if (pp * replicate * shard * cp * tp != 4) continue;
            for (const int64_t batch : {1, 2, 4, 8, 16}) {
              for (const Mode mode : {Mode::none, Mode::selective, Mode::full}) {
                for (const Reduce reduce : {Reduce::once_per_step, Reduce::every_microbatch}) {
                  Layout layout = layout_of(p.planned.experiment);
                  layout.pp = pp, layout.dp_replicate = replicate, layout.dp_shard = shard;
                  layout.cp = cp, layout.tp = tp, layout.local_batch = batch, layout.reduce = reduce;
                  layout.recompute = {.mode = mode, .selective_ac_option = "op"};
                  if (16 % (replicate * shard * batch) != 0) continue;
                  try {
                    RecordedLayout recorded = recorder.record(layout);
                    if (recorded.gib() > limit) continue;
                    meshes.insert({pp, replicate, shard, cp, tp});
                    std::optional<RecordedLayout>& kept = cp > 1 ? best_shared : best;
                    if (!kept || recorded.time->seconds < kept->time->seconds) kept = std::move(recorded);
                  } catch (const ConfigError&) {  // does not divide
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  REQUIRE((best && best_shared));
  CHECK(meshes.size() > 12);
  const SearchOptions any{.limit_gib = limit, .top = 100};
  const SearchResult found = search_layouts(p.config, p.planned, p.machine, any);
  INFO("by hand " << describe(best->layout) << ", found " << describe(found.best.at(0).layout));
  CHECK(found.best[0].time->seconds <=
        std::min(best->time->seconds, best_shared->time->seconds) * (1 + 1e-9));
  std::set<std::vector<int64_t>> tried;
  for (const Layout& l : all_layouts(p.planned, p.machine))
    tried.insert({l.pp, l.dp_replicate, l.dp_shard, l.cp, l.tp});
  CHECK(std::ranges::includes(tried, meshes));
  const SearchResult shared =
      search_layouts(p.config, p.planned, p.machine,
                     {.limit_gib = limit, .fixed = {"parallelism.context_parallel_degree=2"}});
  REQUIRE_FALSE(shared.best.empty());
  CHECK(shared.best[0].layout.cp == 2);
}

TEST_CASE("a pipeline that the file does not have is tried where it is asked for") {
  const Planned p({"--training.global_batch_size", "16", "--model.n_layers", "4"}, 4, 4);
  for (const Layout& layout : all_layouts(p.planned, p.machine)) REQUIRE(layout.pp == 1);
  const SearchResult found =
      search_layouts(p.config, p.planned, p.machine,
                     {.limit_gib = 70, .top = 3, .fixed = {"parallelism.pipeline_parallel_degree=2"}});
  REQUIRE(found.best.size() == 3);
  for (const RecordedLayout& layout : found.best) {
    CHECK(layout.layout.pp == 2);
    CHECK(layout.bytes_of_roles.size() == 2);
  }
  CHECK_THROWS_WITH(search_layouts(p.config, p.planned, p.machine,
                                   {.limit_gib = 70, .fixed = {"parallelism.pipeline_parallel_degree=3"}}),
                    Contains("has parallelism.pipeline_parallel_degree=3"));
}

TEST_CASE("a search tries pipelines between machines, and ranks that share sequences within them") {
  const auto tried = [](const Overrides& more, int ranks, int64_t Layout::*axis) {
    const Planned p(words("--training.global_batch_size 32 --model.n_layers 6") + more, ranks, 4);
    std::set<int64_t> degrees;
    for (const Layout& l : all_layouts(p.planned, p.machine)) {
      CHECK(l.ranks() == ranks);
      CHECK((l.pp == layout_of(p.planned.experiment).pp || l.pp == 1 || l.micro_batches() >= l.pp));
      degrees.insert(l.*axis);
    }
    return degrees;
  };
  using Degrees = std::set<int64_t>;
  CHECK(tried({}, 16, &Layout::pp) == Degrees{1, 2, 4});
  CHECK(tried({}, 4, &Layout::pp) == Degrees{1});
  CHECK(tried({"--model.n_layers", "2000"}, 16, &Layout::pp) == Degrees{1});  // takes long to record
  CHECK(tried({"--model.tie_embeddings", "true"}, 16, &Layout::pp) == Degrees{1});
  CHECK(tried({"--parallelism.pipeline_parallel_degree", "2"}, 4, &Layout::pp) == Degrees{1, 2});
  CHECK(tried({"--training.seq_len", "1024"}, 16, &Layout::cp) == Degrees{1, 2, 4});
  CHECK(tried({}, 16, &Layout::cp) == Degrees{1});  // 64 tokens are no whole chunks

  const Planned p({"--training.global_batch_size", "32", "--model.n_layers", "6"}, 16, 4);
  std::set<int64_t> batches;
  for (const Layout& l : all_layouts(p.planned, p.machine))
    if (l.pp == 2) batches.insert(l.local_batch);
  CHECK(batches == std::set<int64_t>{1, 2, 4, 8});
  const SearchResult found = search_layouts(
      p.config, p.planned, p.machine, {.limit_gib = 70, .fixed = {"parallelism.pipeline_parallel_degree=4"}});
  REQUIRE_FALSE(found.best.empty());
  for (const RecordedLayout& l : found.best) {
    CHECK(l.layout.pp == 4);
    CHECK(l.bytes_of_roles.size() == 4);
    CHECK(l.time->idle_share > 0);
  }
}

TEST_CASE("keys can be fixed, and where nothing fits the closest is said") {
  const Planned p({"--training.global_batch_size", "32"}, 8);
  const SearchResult fixed =
      search_layouts(p.config, p.planned, p.machine,
                     {.limit_gib = 70,
                      .fixed = {"parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=full"}});
  REQUIRE_FALSE(fixed.best.empty());
  for (const RecordedLayout& layout : fixed.best) {
    CHECK(layout.layout.tp == 2);
    CHECK(layout.layout.recompute.mode == ActivationCheckpointConfig::Mode::full);
  }
  const SearchResult none = search_layouts(p.config, p.planned, p.machine, {.limit_gib = 0.001});
  CHECK(none.best.empty());
  REQUIRE(none.closest.has_value());
  CHECK(none.closest->gib() > 0.001);
  auto refused = [&](const std::string& fix) {
    return search_layouts(p.config, p.planned, p.machine, {.limit_gib = 70, .fixed = {fix}});
  };
  CHECK_THROWS_WITH(refused("training.seq_len=64"),
                    Contains("--fix training.seq_len=64: expected KEY=VALUE with one"));
  CHECK_THROWS_WITH(refused("parallelism.tensor_parallel_degree"), Contains("expected KEY=VALUE"));
  CHECK_THROWS_WITH(refused("parallelism.tensor_parallel_degree=3"),
                    Contains("has parallelism.tensor_parallel_degree=3"));
}

TEST_CASE("of layouts that do not fit the closest takes least, with what NCCL takes") {
  const Planned p({"--training.global_batch_size", "8", "--comm.backend", "nccl"}, 4);
  const LayoutRecorder recorder(p.config, p.planned, &p.machine);
  double least = 1e9, without_nccl = 1e9;
  for (const Layout& layout : all_layouts(p.planned, p.machine)) {
    const RecordedLayout recorded = recorder.record(layout);
    least = std::min(least, recorded.gib_with_nccl());
    without_nccl = std::min(without_nccl, recorded.gib());
  }
  REQUIRE(without_nccl < least / 2);
  for (const double limit : {without_nccl * 1.1, (without_nccl + least) / 2}) {
    const SearchResult none = search_layouts(p.config, p.planned, p.machine, {.limit_gib = limit});
    REQUIRE(none.closest.has_value());
    CHECK(none.closest->gib_with_nccl() == least);
    CHECK(none.recorded == 0);  // what was estimated says that none fits
  }
  // Also where what parameters take refuses some, and what is estimated others.
  const Planned wide(
      {"--model.dim", "512", "--model.n_layers", "2", "--model.ffn_dim", "1024", "--model.vocab_size", "4096",
       "--training.seq_len", "2048", "--training.global_batch_size", "16", "--optimizer.name", "Muon"},
      16, 2);
  const LayoutRecorder of_wide(wide.config, wide.planned, &wide.machine, 0.035);
  least = 1e9;
  for (const Layout& layout : all_layouts(wide.planned, wide.machine)) {
    try {
      least = std::min(least, of_wide.record(layout).gib_with_nccl());
    } catch (const ConfigError&) {  // does not divide
    }
  }
  const SearchResult closest = search_layouts(wide.config, wide.planned, wide.machine, {.limit_gib = 0.035});
  REQUIRE(closest.closest.has_value());
  CHECK(closest.closest->gib_with_nccl() == least);
  // Where not even parameters fit, ranks that cannot share the heads are not the closest.
  const Planned odd({"--training.global_batch_size", "8", "--model.n_heads", "3", "--model.n_kv_heads", "3",
                     "--model.head_dim", "64"},
                    4);
  const SearchResult none = search_layouts(odd.config, odd.planned, odd.machine, {.limit_gib = 1e-6});
  REQUIRE(none.closest.has_value());
  CHECK(none.estimated == 0);
  CHECK(none.closest->layout.tp == 1);
}

TEST_CASE("where memory decides, a search keeps what fits when it is recorded, to the byte") {
  const Planned p({"--training.global_batch_size", "32", "--model.n_layers", "12"}, 4, 4);
  const LayoutRecorder recorder(p.config, p.planned, &p.machine);
  const SearchResult free = search_layouts(p.config, p.planned, p.machine, {.limit_gib = 70});
  REQUIRE(free.best.size() > 3);
  for (const size_t i : {size_t{0}, size_t{3}}) {
    const double gib = free.best[i].gib();
    const SearchResult exact = search_layouts(p.config, p.planned, p.machine, {.limit_gib = gib});
    CHECK(exact.best[0].time->seconds <= free.best[i].time->seconds);
    const auto is_this = [&](const RecordedLayout& l) { return l.layout == free.best[i].layout; };
    CHECK(std::ranges::any_of(exact.best, is_this));
    const SearchResult less =
        search_layouts(p.config, p.planned, p.machine, {.limit_gib = gib - 1.0 / (1 << 30)});
    CHECK(std::ranges::none_of(less.best, is_this));
    CHECK(less.best.size() == exact.best.size());
  }
}

TEST_CASE("Muon has one moment, with which a search finds what fits") {
  for (const std::string optimizer : {"AdamW", "Muon"}) {
    INFO(optimizer);
    // So many layers that little is needed besides parameters and their state.
    const Planned p(
        {"--training.global_batch_size", "1", "--model.n_layers", "48", "--optimizer.name", optimizer}, 1, 1);
    const LayoutRecorder recorder(p.config, p.planned, &p.machine);
    const double gib = recorder.record(layout_of(p.planned.experiment)).gib();
    const SearchResult found = search_layouts(p.config, p.planned, p.machine, {.limit_gib = gib});
    REQUIRE_FALSE(found.best.empty());
    CHECK(found.best[0].gib() <= gib);
  }
}

TEST_CASE("a plan of 65,536 ranks and one of 16 micro-batches record hardly more than one of one") {
  const Planned one({"--training.global_batch_size", "1"}, 1);
  const auto recorded = [](const Planned& p) {
    const Experiment& e = p.planned.experiment;
    return sample_first_rank(e.shape, p.planned.device, e.mesh);
  };
  const StepPlan first = recorded(one);
  const auto allocations = [](const StepPlan& plan) { return plan.memory.phases[0].allocations.size(); };
  const Planned many({"--training.global_batch_size", "65536"}, 65536);
  const Planned two({"--training.global_batch_size", "2"}, 2);
  CHECK(recorded(many).order.events.size() <= recorded(two).order.events.size() * 3 / 2);
  CHECK(recorded(many).order.events.size() <= 3 * first.order.events.size());
  CHECK(allocations(recorded(many)) <= 2 * allocations(first));
  // Events of the micro-batches between are repeated; allocations are of those that were recorded.
  const Planned long_step({"--training.global_batch_size", "16"}, 1);
  REQUIRE(long_step.planned.experiment.shape.micro_batches == 16);
  CHECK(allocations(recorded(long_step)) <= 3 * allocations(first));
  // Three, where reductions end in the next micro-batch too.
  const auto crossing = [](const char* sequences) {
    return Planned(
        {"--training.global_batch_size", sequences, "--parallelism.fsdp_reshard_after_forward", "never",
         "--training.cuda_graphs", "off", "--parallelism.fsdp_reduce_every_microbatch", "true"},
        2);
  };
  REQUIRE(crossing("32").planned.experiment.shape.parameters.reductions_cross);
  CHECK(allocations(recorded(crossing("32"))) == allocations(recorded(crossing("6"))));
}
