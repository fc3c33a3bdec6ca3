// What tensor parallel's overlap gains on a link of set latency and bandwidth: a step of two ranks as
// threads, with messages that arrive at once and over the link, in bulk and in blocks. The time falls by the
// transfers that a plan names as beside compute; both are printed.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "apps/train/step_plan.h"
#include "core/beside_compute.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int kRanks = 2, kRounds = 3, kSteps = 4;
constexpr BlockOverlap kBlocks{Overlap::blocks, Overlap::blocks, Overlap::blocks, Overlap::blocks};

TrainingShape shape_of(const BlockOverlap& overlap) {
  // Wide, so that a product takes longer than the transfer beside it: one that outlasts it is not hidden
  // whole.
  const LlamaConfig model{.dim = 4096,
                          .layers = 1,
                          .heads = 32,
                          .kv_heads = 32,
                          .head_dim = 128,
                          .ffn_dim = 8192,
                          .vocab_size = 256};
  TrainingShape shape = tiny_shape(model, 4, 256);
  shape.model_options.overlap = overlap;
  return shape;
}

struct Step {
  double seconds = 1e30;  ///< of the fastest but the first of its engine
  StepPlan plan;
};

void keep_fastest(Step& best, Step step) {
  if (step.seconds < best.seconds) best = std::move(step);
}

Step run_steps(const BlockOverlap& overlap, std::optional<Link> link) {
  const Layout layout{.tp = kRanks};
  const TrainingShape shape = shape_on(shape_of(overlap), layout);
  const std::vector<int32_t> inputs = random_tokens(shape.batch * shape.sequence, 256, 1),
                             targets = random_tokens(shape.batch * shape.sequence, 256, 2);
  Step out;
  run_thread_ranks({.ranks = kRanks, .link = link}, [&](Communicator& world) {
    auto groups = std::make_unique<RankGroups>(world.split("world", {0, 1}), world.split("world", {0, 1}),
                                               layout.mesh());
    EngineRun run(shape, std::move(groups), {DeviceType::cpu, 0});
    run->parameters().initialise(7);
    if (world.rank() == 0) out.plan = run.plan();
    for (int step = 0; step < kSteps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      run->train_step({.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}},
                      {.learning_rate = 1e-3,
                       .optimizer_step = step + 1,
                       .valid_tokens = static_cast<int64_t>(targets.size())});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (step > 0 && world.rank() == 0) out.seconds = std::min(out.seconds, took.count());
    }
  });
  return out;
}

struct Transfers {
  double all = 0, beside = 0;  ///< seconds
};

Transfers transfers_of(const StepPlan& plan, const Link& link) {
  const std::vector<bool> is_beside = beside_compute(plan.order);
  Transfers out;
  for (size_t i = 0; i < is_beside.size(); ++i) {
    const RecordedTransfer& t = plan.order.transfers[i];
    if (t.ranks == 1) continue;
    const double seconds = link.seconds(t.sent_bytes()) + link.latency_seconds;
    out.all += seconds;
    if (is_beside[i]) out.beside += seconds;
  }
  return out;
}

}  // namespace

// Catch has the main function; nothing is checked: times of a machine are no test.
TEST_CASE("what overlap gains on a link") {
  struct Variant {
    const char* name;
    BlockOverlap overlap;
    Link link;  // as slow as the shortest product beside a transfer allows
    Step at_once, linked;
  };
  std::array<Variant, 2> variants{
      {{"bulk", {}, {.latency_seconds = 2e-4, .bytes_per_second = 8e7}, {}, {}},
       {"blocks", kBlocks, {.latency_seconds = 2e-4, .bytes_per_second = 2e8}, {}, {}}}};
  // In turns, so that all meet the machine at its best.
  for (int round = 0; round < kRounds; ++round)
    for (Variant& v : variants) {
      keep_fastest(v.at_once, run_steps(v.overlap, {}));
      keep_fastest(v.linked, run_steps(v.overlap, v.link));
    }
  for (const Variant& v : variants) {
    const double at_once = v.at_once.seconds, linked = v.linked.seconds;
    const Transfers t = transfers_of(v.linked.plan, v.link);
    const double fell = at_once + t.all - linked;
    fmt::print(
        "{:6}: {:.1f} ms with messages at once; transfers {:.1f} ms, of which {:.1f} ms are named beside "
        "compute: planned {:.1f} ms over the link, measured {:.1f} ms; the step falls by {:.1f} ms, {:.1f}% "
        "of what is named\n",
        v.name, 1e3 * at_once, 1e3 * t.all, 1e3 * t.beside, 1e3 * (at_once + t.all - t.beside), 1e3 * linked,
        1e3 * fell, 100 * fell / t.beside);
  }
}
